"""The encoding of records in the log."""

from typing import get_args

import msgspec
import pytest

from orderlymq_broker.state.admin.accessrecords import (
    AccountDeleted,
    AccountSet,
    FormerSecretEnded,
    WhiteAddressesSet,
)
from orderlymq_broker.state.admin.settingsrecords import SettingsSet
from orderlymq_broker.state.groups.lockrecords import (
    ClientDead,
    LockRef,
    LocksExpired,
    LocksReleased,
    LocksRequested,
)
from orderlymq_broker.state.groups.parkedkeyrecords import KeyFollowed, KeyParked, KeyReleased
from orderlymq_broker.state.lanes.lanerecords import (
    Found,
    HandOut,
    LaneDeadLettered,
    LaneFreed,
    LaneRef,
    LanesExpired,
    LanesFetched,
    LanesReported,
    LanesReturned,
    QueueFetch,
    Report,
    ReportKind,
)
from orderlymq_broker.state.records import (
    Append,
    AssignmentSet,
    Commit,
    DedupTrimmed,
    DelayProgress,
    GroupDeleted,
    GroupSet,
    MemberLeft,
    MemberSeen,
    OffsetsCommitted,
    OffsetsReset,
    QueueFloor,
    Record,
    RetentionAdvanced,
    Subscription,
    TopicDeleted,
    TopicSet,
    decode_records,
    encode_records,
)
from orderlymq_broker.state.schedule.timerrecords import TimerRef, TimersEnded
from orderlymq_broker.state.topics.expansionrecords import (
    ExpansionAborted,
    ExpansionFenced,
    ExpansionOpened,
    ExpansionPropagated,
    ExpansionSwitched,
)
from orderlymq_broker.state.transactions.halfrecords import (
    HalfEnded,
    HalfGivenUp,
    HalfOpened,
    HalfResumed,
    HalvesChecked,
)

EXAMPLES: list[Record] = [
    Append(1, 2, 3, 4, 150, -5, 6, "U", "a b", b"\x00\xff", 9),
    DelayProgress(1, 2, 3),
    DedupTrimmed(9),
    RetentionAdvanced((QueueFloor(1, 2, 3),), 4),
    TopicSet("t", 4, 4, 6, True, 0, "SINGLE_TAG", {"a": "b"}, True),
    TopicDeleted("t"),
    GroupSet("g", orderly=True),
    GroupDeleted("g", True),
    OffsetsCommitted((Commit("g", "t", 0, 5, 2),)),
    OffsetsReset((Commit("g", "t", 0, 5),)),
    LocksRequested("g", "c", "h:1", 60_000, (("t", 0),), False),
    LocksReleased("g", "c", None),
    LocksReleased("g", "c", (("t", 0),)),
    LocksExpired("g", (LockRef("t", 0, 7),)),
    ClientDead("c", "gone"),
    ClientDead("c", "gone", 7),
    ClientDead("c", "gone", most=3),
    ClientDead("c", "gone", addresses=("192.0.2.1:5",)),
    ExpansionFenced("t", 1, 8, 4, 60_000, 7),
    ExpansionAborted("t", 1, "too slow"),
    ExpansionSwitched("t", 1, 8, 4, ("g",), 6, 7, True),
    ExpansionPropagated("t", 8, 40_000, 7),
    ExpansionOpened("t"),
    AssignmentSet("g", "t", (("b", 0, "c"),), 7),
    KeyParked("g", "t", 0, "k", 5, "M", 2),
    KeyFollowed("g", "t", 0, "k", 6, 2),
    KeyReleased("g", "t", "k", 0, 7),
    LanesFetched(
        "g",
        "t",
        "c",
        9,
        30_000,
        (QueueFetch(0, 1, 5, (HandOut(7, 1, (2, 3), 9, 1, 2),), (Found("k", (4,), 1),), True),),
    ),
    LanesReported("g", "t", "c", (Report(0, 7, 8, ReportKind.RETRY, 4, 99, 5, reason="no"),)),
    LanesExpired("g", (LaneRef("t", 0, 7, 8),)),
    LanesReturned("g", "c"),
    LaneFreed("g", "t", "k", True, 0, 7),
    LaneDeadLettered("g", "t", 0, 7, 4),
    MemberSeen("g", "c", "h:1", subscriptions=(Subscription("t", "a", codes=(97,)),)),
    MemberLeft("g", "c"),
    HalfOpened(1, 2, "g", "t", "U", 3, 4),
    HalfEnded(1, True),
    HalvesChecked((1, 2)),
    HalfGivenUp(1),
    HalfResumed(1),
    TimersEnded((TimerRef(1, 2, 3),), cancelled=True),
    AccountSet("key", "secret", True, "DENY", "SUB", {"t": "PUB"}, {"g": "SUB"}, "10.0.0.*"),
    AccountDeleted("key"),
    AccountSet("key", "secret", former_secret="before", former_until_ms=1_700_000_000_000),
    FormerSecretEnded("key", 1_700_000_000_000),
    SettingsSet({"fileReservedTime": ("48", "72")}),
    WhiteAddressesSet(("10.0.0.*",)),
]


def test_every_record_is_read_back_as_it_was_written() -> None:
    """Law: all kinds of records in one entry are decoded as they were encoded."""
    assert decode_records(memoryview(encode_records(EXAMPLES))) == EXAMPLES


def test_every_kind_has_an_example_and_a_tag_of_its_own() -> None:
    """Law: every kind of record has its own tag; a tag used twice would make old logs unreadable."""
    kinds = get_args(Record)

    assert {type(each) for each in EXAMPLES} == set(kinds)
    tags = [msgspec.inspect.type_info(kind).tag for kind in kinds]  # type: ignore[attr-defined]  # of structs
    assert len(set(tags)) == len(kinds)


def test_an_older_record_without_its_newest_fields_is_still_read() -> None:
    """Law: an older record without the newest fields can be read, because new fields come last and have defaults."""
    old = msgspec.msgpack.encode([[12, "billing"], [1, 5, 0, 1, 2, 3, 4, 5], [90, [[1, 2, 3]]]])

    assert decode_records(old) == [
        GroupSet("billing"),
        Append(5, 0, 1, 2, 3, 4, 5),
        TimersEnded((TimerRef(1, 2, 3),), cancelled=False),
    ]


@pytest.mark.parametrize("garbage", [b"", b"\xc1", b"\x91\x91\xcc\xff", b"\x80"])
def test_what_is_no_list_of_records_is_refused(garbage: bytes) -> None:
    """Law: data that is no list of records raises one kind of error."""
    with pytest.raises(msgspec.MsgspecError):
        decode_records(garbage)
