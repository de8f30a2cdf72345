"""What brokers report of a topic's queue expansions."""

from typing import Any

from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.message.record import StoredMessage
from orderlymq_spark.cluster.expansions import Expansion, expansions_of


def told(
    grown: int, since: int, *, total: int = 8, queues: int = 4, **more: object
) -> dict[str, Any]:
    """Return a broker's report of an expansion."""
    return {
        "total": total,
        "attempt": 1,
        "grownMillis": grown,
        "sinceMillis": since,
        "writeQueues": queues,
        **more,
    }


def test_an_expansion_is_as_late_as_its_last_broker_and_not_as_what_was_given_up_since() -> None:
    """An expansion has the time of its last broker.

    An expansion that is fenced or given up has moved no key, so it does not count.
    """
    found = expansions_of({"a": told(1, 900), "b": told(2, 900)})
    assert found == [Expansion(2, {"a": 4, "b": 4}, 8, {}, set())]
    assert expansions_of({"a": told(0, 900, total=0)}) == []


def test_queues_that_a_fence_lets_be_read_are_not_of_the_list_yet() -> None:
    """All queues of a broker that does not report count as members of the list."""
    expansion = Expansion(1, {"a": 4}, 4, {})
    names = [("a", 3), ("a", 4), ("b", 9)]

    assert [expansion.has(MessageQueue("t", *each)) for each in names] == [True, False, True]


def test_a_broker_says_where_the_messages_of_its_list_begin() -> None:
    """Law: messages after a broker's barriers belong to its list, and so do all of a new queue; old brokers report none."""
    *_, expansion = expansions_of(
        {
            "a": told(1, 1, grownBarriers=[[0, 5], [1, 0]]),
            "new": told(2, 2, grownBarriers=[]),
            "former": told(1, 1),
            "older": told(1, 1, grownBarriers=None),
        }
    )
    names = [("a", 0), ("a", 1), ("a", 2), ("new", 0), ("former", 0), ("older", 0)]

    found = [expansion.begins_at(MessageQueue("t", *each)) for each in names]

    assert found == [5, 0, 0, 0, None, None]


def test_a_broker_that_has_yet_to_switch_has_nothing_of_the_list() -> None:
    """Law: its messages do not count, whatever the clocks say.

    A broker outside the list has no part in it and always counts.
    """
    (expansion,) = expansions_of(
        {
            "a": told(1_000, 1, grownBarriers=[[0, 5]]),
            "late": told(0, 9_000, total=0, grownBarriers=None),
            "beside": told(0, 0, total=0, attempt=0, grownBarriers=None),
        }
    )
    sent = StoredMessage(*("t", 0, 0, 7, 0, 0, 0, ("h", 1), 2_000, ("h", 1), 0, 0, b"", b"", 0))

    found = [
        expansion.is_behind(sent, MessageQueue("t", name, 0)) for name in ("a", "late", "beside")
    ]

    assert found == [True, False, True]


def test_each_expansion_has_the_barriers_of_its_list() -> None:
    """A broker without the topic at that time had no queues; without barriers in a report, the broker's times count."""
    earlier = [{"total": 4, "grownMillis": 1, "grownBarriers": [[0, 3]]}]
    unknown = [{"total": 4, "grownMillis": 2, "grownBarriers": None}]
    last = {"since": 9, "total": 8, "queues": 2}
    first, second = expansions_of(
        {
            "a": told(7, **last, grownBarriers=[[0, 5], [1, 6]], earlierGrowths=earlier),
            "new": told(7, **last, grownBarriers=[], earlierGrowths=[]),
            "older": told(7, **last, grownBarriers=[[0, 4]], earlierGrowths=unknown),
            "former": told(7, **last, grownBarriers=[[0, 4]]),
        }
    )

    queues = dict.fromkeys(("a", "new", "older", "former"), 2)
    assert first == Expansion(2, queues, 4, {"a": {0: 3}, "new": {}}, set())
    assert second == Expansion(
        7, queues, 8, {"a": {0: 5, 1: 6}, "new": {}, "older": {0: 4}, "former": {0: 4}}, set()
    )
