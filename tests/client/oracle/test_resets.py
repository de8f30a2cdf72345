"""The oracle and resets: an administrator moves a group's offset, and the order is judged from there."""

from dataclasses import replace

import pytest

from orderlymq.oracle.verdict import Defect, Event, Kind, judge
from tests.client.oracle.test_verdict import (
    CLEAN,
    DRAINED,
    ack,
    commit,
    defects,
    deliver,
    done,
    failed,
    send,
    timed,
)


def test_an_offset_may_fall_after_a_reset() -> None:
    """Law: an offset may fall after a reset."""
    reset = replace(commit(3), kind=Kind.RESET)

    assert defects([commit(7), reset, commit(4)]) == []


@pytest.mark.parametrize(
    ("jump", "defect"),
    [
        ([done("a", 0), deliver("c", 2), done("c", 2)], Defect.SKIPPED),
        ([failed("a", 0), deliver("b", 1), done("b", 1)], Defect.OVERTAKEN),
    ],
)
def test_a_group_may_jump_once_after_a_reset_to_nobody_knows_where(
    jump: list[Event], defect: Defect
) -> None:
    """Law: after a reset to an unknown offset a group may jump once, over messages that were not delivered or not done."""
    reset = replace(commit(-1), kind=Kind.RESET)
    begun = [*(ack(name, offset) for offset, name in enumerate("abcdef")), deliver("a", 0)]

    assert defects([*begun, *jump]) == [defect]
    assert defects([*begun, reset, *jump]) == []
    assert defects([*begun, reset, *jump, deliver("f", 5)]) == [Defect.SKIPPED]


def test_a_reset_to_an_offset_owes_nothing_before_it() -> None:
    """Law: after a reset to an offset, nothing before it is owed, overtaken or skipped."""
    sends = [ack(name, offset) for offset, name in enumerate("abcd")]
    reset = replace(commit(3), kind=Kind.RESET)
    history = [*sends, deliver("a", 0), done("a", 0), deliver("b", 1), failed("b", 1)]

    assert defects([*history, reset, deliver("d", 3)]) == []
    assert defects([*history, replace(reset, offset=2), deliver("c", 2)]) == []


@pytest.mark.parametrize(
    ("count", "places", "again", "lost"),
    [
        (1, [3], [3], ""),  # Forwards: messages before it are skipped.
        (1, [2], [3], "c"),
        (2, [0], [0, 1, 2, 3], ""),  # Backwards: all of it is due again.
        (2, [0], [0, 1, 3], "c"),
        (2, [0], [], "abcd"),
        (2, [0, 3], [3], ""),  # The last reset counts.
        (2, [3, 0], [3], "abc"),
    ],
)
def test_what_is_lost_after_a_reset_is_what_stands_behind_its_offset(
    count: int, places: list[int], again: list[int], lost: str
) -> None:
    """Law: after a reset, messages behind its offset that were not delivered since are lost."""
    begun = [ack(name, offset) for offset, name in enumerate("abcd")]
    before = [each for o in range(count) for each in (deliver("abcd"[o], o), done("abcd"[o], o))]
    resets = [replace(commit(place), kind=Kind.RESET) for place in places]
    after = [each for o in again for each in (deliver("abcd"[o], o), done("abcd"[o], o))]

    found = judge(timed([*begun, *before, *resets, *after, DRAINED])).findings

    assert "".join(each.message for each in found if each.defect is Defect.LOST) == lost


@pytest.mark.parametrize("place", [0, -1])
def test_what_a_reset_leads_back_to_was_not_overtaken_before(place: int) -> None:
    """Law: a message to which a reset leads back was not overtaken before."""
    begun = [*CLEAN[:4], deliver("b", 1), done("b", 1)]
    reset = replace(commit(place), kind=Kind.RESET)
    again = [deliver("a", 0), done("a", 0), deliver("b", 1), done("b", 1)]

    assert defects([*begun, reset, *again]) == []
    assert defects([*begun, *again]) == [Defect.REORDERED]
    assert defects([*begun, replace(reset, queue="g0:1"), *again]) == [Defect.REORDERED]
    assert defects([*begun, replace(reset, group="audit"), *again]) == [Defect.REORDERED]


def test_what_a_reset_leads_back_to_comes_in_order() -> None:
    """Law: a reset excuses the order of earlier deliveries only."""
    reset = replace(commit(0), kind=Kind.RESET)
    begun = [*CLEAN[:4], send("c"), ack("c", 2), deliver("c", 2), done("c", 2)]
    again = [deliver("b", 1), done("b", 1), deliver("a", 0), done("a", 0)]

    assert Defect.REORDERED in defects([*begun, reset, *again])
    assert Defect.REORDERED in defects([*begun, replace(reset, offset=1), *again])


def test_what_a_reset_wants_again_is_to_be_done_again() -> None:
    """Law: a message that comes again after a reset must be done again; an earlier attempt may still do it."""
    begun = [*CLEAN[:10], replace(commit(0), kind=Kind.RESET)]
    again = [deliver("a", 0), done("a", 0), deliver("b", 1)]

    assert defects([*begun, *again, DRAINED]) == [Defect.LOST]
    assert defects([*begun, deliver("a", 0), deliver("b", 1), done("b", 1)]) == [Defect.OVERTAKEN]
    assert defects([*begun, *again, done("b", 1), DRAINED]) == []
    assert defects([*CLEAN[:8], *begun[8:9], *begun[10:], *again, done("b", 1), DRAINED]) == []


def test_a_reset_to_nobody_knows_where_leaves_open_what_is_lost() -> None:
    """Law: after a reset to an unknown offset, loss in that queue and group is not judged, and the verdict says so."""
    reset = replace(commit(-1), kind=Kind.RESET)
    history = [ack("a", 0), ack("b", 1), deliver("b", 1), done("b", 1)]

    verdict = judge(timed([*history, reset, DRAINED]))

    assert verdict.kept
    assert verdict.not_judged == (
        "loss in queue g0:0 of topic orders for group billing after a reset",
    )
    assert defects([*history, replace(reset, group="audit"), DRAINED]) == [Defect.LOST]
    assert defects([*history, replace(reset, queue="g0:1"), DRAINED]) == [Defect.LOST]
    assert defects([*history, DRAINED, reset]) == [Defect.LOST]
