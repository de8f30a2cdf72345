"""The bench's verdict: repeats are allowed; a broken order and losses are found."""

from orderlymq.cli.bench.order import FINDINGS_MAX, OrderCheck


def check(delivered: list[int], acknowledged: int) -> OrderCheck:
    """Return the verdict on the deliveries of one key."""
    order = OrderCheck(1)
    for number in range(acknowledged):
        order.acknowledged(0, number)
    for number in delivered:
        order.delivered(0, number)
    return order


def test_in_order_with_repeats_is_kept() -> None:
    """Law: repeats of delivered messages, from any place, keep the order (at least once)."""
    order = check([0, 1, 0, 1, 2, 2, 3], 4)

    assert (order.repeats, order.broken, order.missing()) == (3, 0, 0)


def test_a_message_before_its_predecessor_breaks_the_order() -> None:
    """Law: a message delivered before its predecessor is a finding that names both."""
    order = check([0, 2, 1, 3], 4)

    assert order.broken == 1
    assert order.findings == ["key 0: message 2 was delivered before 1"]


def test_what_was_acknowledged_and_never_came_is_missing() -> None:
    """Law: an acknowledged message that never came is missing; one that was not acknowledged may come or not."""
    assert check([0, 1], 4).missing() == 2
    assert check([0, 1, 2], 2).missing() == 0
    assert check([], 1).missing() == 1


def test_keys_are_judged_one_by_one() -> None:
    """Law: each key is checked by itself."""
    order = OrderCheck(2)

    assert [order.delivered(key, number) for key, number in ((1, 0), (0, 0), (1, 0))] == [
        True,
        True,
        False,
    ]


def test_findings_are_bounded() -> None:
    """Law: the number of shown findings is limited; all are counted."""
    order = check(list(range(1, 200, 2)), 200)

    assert (order.broken, len(order.findings)) == (100, FINDINGS_MAX)
