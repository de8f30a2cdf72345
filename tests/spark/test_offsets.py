"""Offsets of many queues: laws of limits, ranges and continuation."""

import json
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_spark.errors import OptionError
from orderlymq_spark.offsets import (
    Continued,
    QueueRange,
    begun_again,
    continued,
    created_again,
    from_json,
    ids_in,
    passed_over,
    ranges,
    share,
    split,
    to_json,
)

QUEUES = st.builds(
    MessageQueue, st.sampled_from(["a", "b"]), st.sampled_from(["g", "h"]), st.integers(0, 3)
)
OFFSETS = st.dictionaries(QUEUES, st.integers(0, 1000), max_size=8)
SPANS = st.dictionaries(QUEUES, st.tuples(st.integers(0, 500), st.integers(0, 500)), max_size=8)


@given(OFFSETS)
def test_offsets_survive_their_json_and_equal_ones_have_equal_text(
    offsets: dict[MessageQueue, int],
) -> None:
    """Spark compares texts, so the order in which queues became known must not matter."""
    backwards = dict(reversed(offsets.items()))

    assert from_json(json.loads(json.dumps(to_json(offsets)))) == offsets
    assert json.dumps(to_json(offsets)) == json.dumps(to_json(backwards))


@given(SPANS, st.integers(1, 1200))
@example({MessageQueue("t", "b", number): (0, 1) for number in range(3)}, 2)
def test_a_limit_is_kept_and_no_queue_starves(
    spans: dict[MessageQueue, tuple[int, int]], limit: int
) -> None:
    """The limit holds in total (or one offset per waiting queue); each waiting queue gets one, and none exceeds its end."""
    start = {queue: low for queue, (low, _) in spans.items()}
    end = {queue: low + size for queue, (low, size) in spans.items()}
    waiting = [queue for queue in spans if end[queue] > start[queue]]

    found = share(start, end, limit)

    total = sum(end[queue] - start[queue] for queue in spans)
    assert sum(found[queue] - start[queue] for queue in spans) == min(
        total, max(limit, len(waiting))
    )
    assert all(start[queue] <= found[queue] <= end[queue] for queue in spans)
    assert all(found[queue] > start[queue] for queue in waiting)


@given(SPANS, st.integers(1, 1200))
def test_a_limit_is_shared_in_proportion(
    spans: dict[MessageQueue, tuple[int, int]], limit: int
) -> None:
    """Except for rounding, a queue with more waiting messages never gets fewer than one with less."""
    start = {queue: low for queue, (low, _) in spans.items()}
    end = {queue: low + size for queue, (low, size) in spans.items()}

    found = share(start, end, limit)

    parts = sorted((end[queue] - start[queue], found[queue] - start[queue]) for queue in spans)
    assert all(more >= less - 1 for (_, less), (_, more) in pairwise(parts))


@given(SPANS, st.integers(0, 40), st.none() | st.integers(1, 9))
def test_pieces_cover_the_same_offsets_in_order(
    spans: dict[MessageQueue, tuple[int, int]], count: int, size: int | None
) -> None:
    """Cutting loses, repeats and swaps nothing, and reaches the wanted number and size if there is enough."""
    start = {queue: low for queue, (low, _) in spans.items()}
    whole = ranges(start, {queue: low + size for queue, (low, size) in spans.items()})

    pieces = split(whole, count, size)

    assert [(p.queue, n) for p in pieces for n in range(p.start, p.end)] == [
        (p.queue, n) for p in whole for n in range(p.start, p.end)
    ]
    assert len(pieces) >= min(count, sum(each.size for each in whole))
    assert all(size is None or each.size <= size for each in pieces)
    assert size is not None or len(whole) < count or pieces == whole


@given(st.sets(st.integers(10, 40)))
def test_what_a_broker_passed_over_and_what_it_gave_is_the_whole_range(given: set[int]) -> None:
    """Each offset is either skipped or delivered; adjacent ranges are merged."""
    found = sorted(given)
    part = QueueRange(MessageQueue("t", "b", 0), 10, 41)

    missing = passed_over(part, found)

    assert sorted([*found, *(n for each in missing for n in range(each.start, each.end))]) == list(
        range(10, 41)
    )
    assert all(before.end < after.start for before, after in pairwise(missing))


def test_what_changed_since_a_stream_stopped_is_reported() -> None:
    """Queues that aged out, were made again, added, removed or not changed are reported as such.

    An added queue is wanted from its first offset on, unless its topic or its broker group is new to the stream.
    """
    same, aged, remade, added, late, removed, again = (MessageQueue("t", "g", n) for n in range(7))
    topic, group = MessageQueue("u", "g", 0), MessageQueue("t", "h", 0)
    known = {same: 5, aged: 3, remade: 90, removed: 7, again: 4}
    lows = {same: 0, aged: 10, remade: 0, added: 0, late: 2, topic: 3, group: 4, again: 2}
    highs = {same: 9, aged: 12, remade: 4, added: 6, late: 6, topic: 6, group: 6, again: 9}

    assert continued(known, lows, highs, {again}) == Continued(
        {same: 5, aged: 10, remade: 0, added: 0, late: 2, topic: 3, group: 4, again: 2},
        (added, late, group, topic),
        (group, topic),
        (removed,),
        (
            QueueRange(aged, 3, 10),
            QueueRange(remade, 90, 90),
            QueueRange(late, 0, 2),
            QueueRange(again, 4, 4),
            QueueRange(again, 0, 2),
        ),
    )


def test_the_ids_of_topics_stand_beside_their_offsets() -> None:
    """Known ids are stored with the offsets; another id means that the queue's topic was created again."""
    one, two = MessageQueue("t", "g", 0), MessageQueue("t", "h", 0)
    ids = {("t", "g"): 7, ("u", "g"): 8}

    value = json.loads(json.dumps(to_json({one: 5, two: 6}, ids)))

    assert value == {"t": {"g": {"0": 5, "topicId": 7}, "h": {"0": 6}}}
    assert from_json(value) == {one: 5, two: 6}
    assert ids_in(value) == {("t", "g"): 7}
    assert created_again([one, two], ids_in(value), {("t", "g"): 9, ("t", "h"): 9}) == {one}
    assert created_again([one, two], ids_in(value), {}) == set()


def test_a_batch_of_a_replaced_queue_begins_at_0() -> None:
    """A queue is replaced if it has another id, a lower end, or another message before the same offset.

    A missing mark proves nothing.
    """
    new, lower, marked, same, longer, gone, unmarked = (
        MessageQueue("t", f"g{n}", 0) for n in range(7)
    )
    start = dict.fromkeys((new, lower, marked, same, longer, gone, unmarked), 5)
    end = start | {lower: 4, longer: 6}
    del end[gone]
    marks = dict.fromkeys((new, marked, same, longer, gone), 1)

    found = begun_again(
        to_json(start, {("t", "g0"): 7}, marks),
        to_json(end, {("t", "g0"): 8}, {**marks, marked: 2, longer: 2, unmarked: 2}),
    )

    assert found == {new, lower, marked}


@pytest.mark.parametrize("value", [[], {"t": 1}, {"t": {"g": {"x": 1}}}, {"t": {"g": {"0": "1"}}}])
def test_offsets_of_another_form_are_refused_with_an_example(value: object) -> None:
    with pytest.raises(OptionError, match="startingOffsets must look like"):
        from_json(value, "startingOffsets")
