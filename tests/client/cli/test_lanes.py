"""`orderlymq group show` describes lanes."""

from dataclasses import replace

from orderlymq.cli.lanes import lane_data, lane_lines
from orderlymq_protocol.body.lanes import LaneShown, LaneTable, QueueLanes

NOW_MS = 1_700_000_000_000


def _lane(key: str, state: str, seconds: int) -> LaneShown:
    since_ms = NOW_MS - 1_000 * seconds
    return LaneShown(
        "orders", "broker-a", 0, 7, key, state, 12, 3, since_millis=since_ms, holder="c1"
    )


def _limited(broker_group: str, queue_id: int, why: str) -> QueueLanes:
    return QueueLanes("orders", broker_group, queue_id, 0, 0, 0, 0, 0, 0, 0, limited=why)


def test_a_lane_takes_one_line_whatever_its_key_and_its_reason_say() -> None:
    """Law: a lane takes one line, because a line break in its key or reason could look like another lane."""
    lane = replace(_lane("a\nb", "held", 5), reason="ValueError: no\n  other (offset 1")
    table = LaneTable("Key", (QueueLanes("orders", "broker-a", 0, 20, 12, 9, 0, 0, 0, 1),), (lane,))

    _, line = lane_lines(lane_data(table, NOW_MS))

    assert line.startswith(r"  a\x0ab (offset 12 of queue 0")
    assert line.endswith(r": ValueError: no\x0a  other (offset 1)")


def test_a_listener_that_does_not_return_is_named() -> None:
    """Law: a lane long in hand is named, behind those that failed."""
    lanes = (_lane("slow", "inHand", 60), _lane("quick", "inHand", 59), _lane("bad", "parked", 5))
    table = LaneTable("Key", (QueueLanes("orders", "broker-a", 0, 20, 12, 9, 2, 0, 1, 0),), lanes)

    first, *named = lane_lines(lane_data(table, NOW_MS))

    assert first == "Lanes: 2 in hand, 0 ready, 1 parked, 0 held; 9 messages owed."
    assert [line.split()[0] for line in named] == ["bad", "slow"]
    assert "in hand of c1 for 60 s, 2 behind it" in named[1]


def test_queues_without_new_lanes_share_a_line_for_each_reason() -> None:
    """Law: queues without new lanes share a line per reason; some are named, all are counted."""
    rows = [_limited("broker-a", each, "full") for each in range(12)]
    rows += [
        _limited("broker-b", 7, "full"),
        _limited("broker-a", 12, ""),
        _limited("broker-a", 13, "stopped"),
    ]

    _, *limited = lane_lines(lane_data(LaneTable("Key", tuple(rows)), NOW_MS))

    assert limited == [
        "No new lanes of queues 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more of orders at broker-a: full.",
        "No new lanes of queue 7 of orders at broker-b: full.",
        "No new lanes of queue 13 of orders at broker-a: stopped.",
    ]
