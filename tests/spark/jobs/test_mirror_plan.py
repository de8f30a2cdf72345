"""The plan of a mirror: its next copies, and the offsets at which groups begin at the target."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.message.record import StoredMessage
from orderlymq_spark.errors import DataLost, OptionError, QueueListChanged, SinkConflict
from orderlymq_spark.jobs.mirror.plan import (
    Bounds,
    check_list,
    check_topics,
    due,
    is_copy,
    pair,
    translated,
)
from orderlymq_spark.offsets import QueueRange


def queues(*names: str, count: int = 2, topic: str = "orders") -> list[MessageQueue]:
    """Return this many queues of each broker group."""
    return [MessageQueue(topic, name, number) for name in names for number in range(count)]


A, B = queues("a")
PAIRS = {A: A, B: B}


def test_a_queue_goes_on_where_the_target_ends() -> None:
    """The offsets are the same at both; a queue that never had a message begins at the source's first offset."""
    sources = {A: Bounds(0, 9), B: Bounds(4, 9)}

    assert due(PAIRS, sources, {A: 6, B: 0}) == [QueueRange(A, 6, 9), QueueRange(B, 4, 9)]
    assert due(PAIRS, sources, {A: 9, B: 9}) == []


def test_an_empty_queue_of_the_source_begins_nothing() -> None:
    """If all messages of a source queue have aged out, the first new one decides where the copy begins."""
    assert due({A: A}, {A: Bounds(7, 7)}, {A: 0}) == []


def test_what_aged_out_before_it_was_copied_is_named() -> None:
    """The error names the missing messages, because a mirror leaves no hole."""
    with pytest.raises(DataLost, match=r"orders a:0 \[3, 5\) \(2 messages\) aged out"):
        due({A: A}, {A: Bounds(5, 9)}, {A: 3})


def test_a_target_with_more_than_the_source_is_no_mirror_of_it() -> None:
    """The source was created again or restored, or another program has written to the target."""
    with pytest.raises(SinkConflict, match="ends at 8, the source's queue at 6"):
        due({A: A}, {A: Bounds(0, 6)}, {A: 8})


@given(
    low=st.integers(0, 50),
    kept=st.integers(0, 50),
    end=st.integers(0, 100),
)
def test_what_is_due_keeps_the_prefix(low: int, kept: int, end: int) -> None:
    """The next part begins at the target's end, or the target's queue is empty; otherwise the error says why not."""
    has = Bounds(low, low + kept)
    try:
        parts = due({A: A}, {A: has}, {A: end})
    except DataLost:
        assert 0 < end < has.low
    except SinkConflict:
        assert end > has.high
    else:
        assert parts == ([] if (end or low) == has.high else [QueueRange(A, end or low, has.high)])


def test_queues_are_paired_by_the_names_of_their_broker_groups() -> None:
    """If the clusters have other names, the groups are paired in the order of their names."""
    mine = queues("a", "b")

    assert pair("orders", mine, queues("a", "b")) == dict(zip(mine, mine, strict=True))
    others = queues("x", "y")
    assert pair("orders", mine, others) == dict(zip(mine, others, strict=True))


def test_a_group_that_the_source_gets_moves_no_pair() -> None:
    """Law: an eleventh group is the last in both clusters, so the others keep their copies before the target has grown."""
    mine = [f"demo-{number}" for number in range(11)]
    theirs = [f"dr-{number}" for number in range(11)]
    ten = pair("orders", queues(*mine[:10]), queues(*theirs[:10]))

    assert ten == dict(zip(queues(*mine[:10]), queues(*theirs[:10]), strict=True))
    assert pair("orders", queues(*mine), queues(*theirs[:10])) == ten
    assert pair("orders", queues(*mine), queues(*theirs)).items() >= ten.items()


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (["demo-9", "demo-10"], ["dr-0", "dr-1"]),
        ([f"b-{number}" for number in range(1, 11)], [f"dr-{number}" for number in range(10)]),
        (["a", "b"], ["x-9", "x-10"]),
    ],
)
def test_groups_that_clients_put_in_another_order_make_no_pairs(
    mine: list[str], theirs: list[str]
) -> None:
    """Law: clients hash keys over groups in text order of their names, so a key would have another queue at the target."""
    with pytest.raises(QueueListChanged, match="the same queue at both"):
        pair("orders", queues(*mine), queues(*theirs))


def test_a_topic_that_grew_is_copied_up_to_there() -> None:
    """The old queues have copies; the error about missing queues comes after all messages before the growth are copied."""
    mine = queues("a", "b", count=4)
    theirs = queues("a", "b")
    pairs = pair("orders", mine, theirs)

    assert set(pairs) == set(theirs)
    with pytest.raises(QueueListChanged, match="to 8 queues at the source and has 4 at the target"):
        check_list("orders", len(mine), pairs)
    check_list("orders", len(theirs), pairs)


@pytest.mark.parametrize(
    "theirs", [queues("a", count=3), queues("a", "b"), queues("x", "y"), queues("x", count=3)]
)
def test_a_target_with_other_queues_is_refused(theirs: list[MessageQueue]) -> None:
    """With other queues, a key would have another queue at the target."""
    with pytest.raises(QueueListChanged, match="the same queue at both"):
        pair("orders", queues("a"), theirs)


@pytest.mark.parametrize("topic", ["%RETRY%billing", "%DLQ%billing", "SCHEDULE_TOPIC_XXXX"])
def test_topics_of_the_clusters_own_work_are_refused(topic: str) -> None:
    """The messages of such topics mean something only in their own cluster."""
    check_topics(["orders"])
    with pytest.raises(OptionError, match="does not copy"):
        check_topics(["orders", topic])


@given(
    committed=st.integers(0, 20),
    end=st.integers(0, 20),
    present=st.none() | st.integers(0, 20),
)
def test_a_group_begins_where_it_stood_or_earlier(
    committed: int, end: int, present: int | None
) -> None:
    """A group's offset at the target is at most the committed one and within the copy, and never goes back."""
    offset = translated(committed, end, present)

    if offset is None:
        assert present is not None
        assert present >= min(committed, end)
    else:
        assert offset == min(committed, end)
        assert present is None or offset > present


def test_a_copy_differs_in_its_place_alone() -> None:
    """A copy may differ only in the place and time of storage; any other difference makes it another message."""
    message = StoredMessage(
        *("orders", 0, 1, 7, 4711, 0, 5, ("192.0.2.1", 1), 6, ("192.0.2.2", 2), 0, 0),
        b"body",
        b"KEYS\x01k\x02",
        99,
    )

    assert is_copy(replace(message, physical_offset=1, store_timestamp=8), message)
    changes: list[dict[str, object]] = [
        {"body": b"other"},
        {"properties": b""},
        {"flag": 2},
        {"born_timestamp": 6},
        {"queue_offset": 8},
    ]
    for change in changes:
        assert not is_copy(replace(message, **change), message)  # type: ignore[arg-type]  # names of its fields
