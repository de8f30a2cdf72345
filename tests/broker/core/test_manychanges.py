"""Many changes at the same time: uncommitted, in one record, and in one entry."""

from collections import Counter, deque
from typing import NoReturn

import pytest

from orderlymq_broker.core.effects import Propose
from orderlymq_broker.core.entrybuilder import ENTRY_CHANGES_USUAL, in_pieces, next_group
from orderlymq_broker.core.responses import LOST_IN_PARTS
from orderlymq_broker.processors.topics import retention
from orderlymq_broker.processors.topics.retention import STEP_SIZE_MIN
from orderlymq_broker.settings import StorageSettings
from orderlymq_broker.state.groups.lockrecords import ClientDead, LocksRequested
from orderlymq_broker.state.lanes.lanerecords import (
    Found,
    HandOut,
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
    Commit,
    GroupDeleted,
    GroupSet,
    MemberSeen,
    OffsetsCommitted,
    OffsetsReset,
    Record,
    TopicDeleted,
    TopicSet,
)
from orderlymq_broker.state.transactions.halfrecords import HalfGivenUp
from tests.broker.processors.adminshell import AdminShell
from tests.broker.processors.driver import TOOL, Shell, settings
from tests.broker.processors.halves import begin
from tests.broker.processors.requests import (
    commit_ext,
    create,
    heartbeat,
    lock,
    lock_body,
    offset_of,
    properties,
    send,
)


class Unwalked(Counter[tuple[str, str]]):
    """A counter that fails if it is iterated over."""

    def items(self) -> NoReturn:
        raise AssertionError("went over all that is under way")


def test_settling_goes_over_nothing_but_what_is_settled() -> None:
    """Law: settling a proposal visits only its own topics, because ten thousand may be under way.

    A topic is forgotten with its last change.
    """
    entries = Shell().core.context.entries
    entries.changing = Unwalked()
    proposals = [Propose([TopicSet("orders", count, count)]) for count in (1, 2)]
    other = Propose([TopicSet("invoices", 1, 1)])
    for proposal in (*proposals, other):
        assert entries.admit(proposal) is None

    entries.settle(proposals[:1])
    assert dict.copy(entries.changing) == {("topic", "orders"): 1, ("topic", "invoices"): 1}
    entries.settle(proposals[1:])

    assert dict.copy(entries.changing) == {("topic", "invoices"): 1}


MANY = ENTRY_CHANGES_USUAL // 4
REPORTED = LanesReported("g", "t", "c", (Report(0, 1, 2, ReportKind.DONE),) * MANY)
FOUND = QueueFetch(0, 0, MANY, (HandOut(1, 1),) * (MANY // 2), (Found("", (0,), 1),) * (MANY // 2))
BEGUN = tuple(QueueFetch(number, 0, 0, begins=True) for number in range(MANY))


@pytest.mark.parametrize(
    "record",
    [
        REPORTED,
        LanesFetched("g", "t", "c", 1, 5_000, (FOUND,)),
        LanesFetched("g", "t", "c", 1, 5_000, BEGUN),
        LocksRequested("g", "c", "h:1", 5_000, (("t", 0),) * MANY),
        OffsetsCommitted((Commit("g", "t", 0, 1),) * MANY),
        TopicDeleted("t"),  # This record looks at all consumer groups.
        # This record forgets the consumer group's data in all topics.
        GroupDeleted("g", clean_offsets=True),
    ],
)
def test_an_entry_has_so_many_changes_and_no_more_be_they_in_few_records(record: Record) -> None:
    """Law: the changes of an entry are limited, even if a few records make them:
    a replica applies an entry without a pause, and is silent meanwhile.
    """
    shell = Shell().lead()
    proposals = [Propose([record]) for _ in range(10)]
    for proposal in proposals:
        assert shell.core.context.entries.admit(proposal) is None
    collected = deque(proposals)

    groups = [len(next_group(collected)) for _ in range(3)]

    assert (groups, len(collected)) == ([4, 4, 2], 0)


@pytest.mark.parametrize(
    ("record", "lanes"),
    [
        (LanesReturned("g", "c"), 3),
        (ClientDead("c", "gone"), 3),
        (ClientDead("c", "gone", most=2), 1),
        (LaneFreed("g", "orders", ""), 3),
        (OffsetsReset((Commit("g", "orders", 0, 0), Commit("g", "orders", 1, 0))), 3),
        (LanesReturned("g", "d"), 0),
        (LanesReturned("h", "c"), 0),
    ],
)
def test_lanes_that_a_record_moves_and_does_not_name_count_as_its_changes(
    shell: Shell, record: Record, lanes: int
) -> None:
    """Law: lanes that a record moves without naming them count as its changes; a consumer group may have 16,384 of them."""
    create(shell, TopicSet("orders", 2, 2), GroupSet("g", concurrency="Key"))
    create(shell, MemberSeen("g", "c", "h:1"))
    for _ in range(3):
        send(shell)
    found = tuple(Found("", (offset,), 1) for offset in range(3))
    fetch = QueueFetch(0, 0, 3, (), found, begins=True)
    create(shell, LanesFetched("g", "orders", "c", 1, 5_000, (fetch,)))
    assert shell.state.lanes.count_of("g") == 3
    before = shell.machine.changes
    proposal = Propose([record])

    shell.run([proposal])
    shell.settle()

    commits = len(record.commits) if isinstance(record, OffsetsReset) else 1
    assert proposal.changes_count == commits + lanes
    assert shell.machine.changes - before == commits + lanes


def test_works_of_many_changes_are_cut_into_pieces_of_an_entry() -> None:
    """Law: records with many changes are cut into entries of limited size,
    for example when leases of thousands of lanes end together.
    """
    expired = LanesExpired("g", (LaneRef("t", 0, 1, 2),) * ENTRY_CHANGES_USUAL)

    pieces = in_pieces([expired, expired, REPORTED, REPORTED])

    assert pieces == [Propose([expired]), Propose([expired]), Propose([REPORTED, REPORTED])]


def test_a_replica_counts_what_it_applies_by_its_changes() -> None:
    """Law: a replica counts the changes that it applies, because its loop ends a turn after a number of them."""
    shell = Shell().lead()
    before = shell.machine.changes

    create(shell, REPORTED, TopicSet("t", 1, 1))

    assert shell.machine.changes - before == MANY + 1


HELD = 3 * ENTRY_CHANGES_USUAL


@pytest.fixture
def holder(shell: Shell) -> Shell:
    """A leader; its client alice holds thousands of queues."""
    create(shell, TopicSet("orders", HELD, HELD), GroupSet("billing"))
    heartbeat(shell, "alice")
    assert len(lock(shell, "alice", *range(HELD))) == HELD
    return shell


@pytest.mark.parametrize(
    ("code", "ext", "body"),
    [
        (41, {}, lock_body("alice", *range(HELD))),
        (42, {}, lock_body("alice", *range(HELD))),
        (35, {"clientID": "alice", "consumerGroup": "billing"}, b""),
        (20502, {"clientId": "alice", "proof": "no such process"}, b""),
    ],
)
def test_what_one_client_holds_is_locked_and_freed_entry_by_entry(
    holder: Shell, code: int, ext: dict[str, str], body: bytes
) -> None:
    """Law: the locks of a client with thousands of queues are taken and freed in several entries,
    because a replica is silent while it applies one.
    """
    opaque = holder.submit(code, ext, body)
    changes = [proposal.changes_count for proposal in holder.pending]
    while holder.pending:
        assert holder.reply_to(opaque) is None
        first, *others = holder.pending
        holder.pending = [first]
        holder.turn()
        holder.pending += others

    reply = holder.reply_to(opaque)
    assert reply is not None
    assert (reply.code, len(changes) >= 3, max(changes)) == (0, True, ENTRY_CHANGES_USUAL)
    assert holder.state.locks.count_of("alice") == (HELD if code == 41 else 0)
    assert bool(holder.state.members.of_group("billing")) == (code in (41, 42))


def test_who_loses_his_leader_between_two_parts_is_answered_once(holder: Shell) -> None:
    """Law: if leadership is lost between two parts, the client gets one answer; the first parts are stored."""
    opaque = holder.submit(42, {}, lock_body("alice", *range(HELD)))
    others = holder.pending[1:]
    del holder.pending[1:]
    holder.turn()
    holder.pending = others

    holder.lose_proposals()

    reply = holder.reply_to(opaque)
    assert reply is not None
    assert (reply.code, reply.remark) == (1, LOST_IN_PARTS)
    assert holder.state.locks.count_of("alice") == HELD - ENTRY_CHANGES_USUAL


def test_a_proof_of_death_that_is_void_frees_no_part(holder: Shell) -> None:
    """Law: a proof of death with a wrong address frees no lock, not even part of them."""
    said = {"clientId": "alice", "proof": "gone", "addresses": "192.0.2.77:1"}

    assert holder.call(20502, said).code == 0

    assert holder.state.locks.count_of("alice") == HELD


def test_offsets_of_a_large_topic_are_set_entry_by_entry(admin: AdminShell) -> None:
    """Law: 222 for all queues of a large topic is stored in several entries; each offset is independent."""
    create(admin, TopicSet("orders", HELD, HELD), GroupSet("billing"))
    heartbeat(admin, "alice")

    opaque = admin.submit(
        222,
        {"topic": "orders", "group": "billing", "timestamp": "0", "isForce": "true"},
        caller=TOOL,
    )
    while not admin.pending:
        admin.go_on()
    changes = [proposal.changes_count for proposal in admin.pending]
    admin.settle()

    assert changes == [ENTRY_CHANGES_USUAL] * 3
    reply = admin.reply_to(opaque)
    assert reply is not None
    assert reply.code == 0
    assert {offset_of(admin, queue) for queue in range(HELD)} == {0}


def test_what_is_gathered_of_offsets_is_committed_entry_by_entry(shell: Shell) -> None:
    """Law: offsets gathered between two ticks, of thousands of queues, are committed in several entries."""
    create(shell, TopicSet("orders", HELD, HELD), GroupSet("billing"))
    heartbeat(shell, "alice")
    for queue in range(HELD):
        shell.ask(15, commit_ext(0, queue), oneway=True)

    shell.wall_ms += 100
    shell.run(shell.core.tick(shell.now))
    changes = [proposal.changes_count for proposal in shell.pending]
    shell.settle()

    assert changes == [ENTRY_CHANGES_USUAL] * 3


def test_halves_that_were_given_up_go_with_their_messages_tick_by_tick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: given-up half messages are deleted some per tick, because one open half may keep many for days.

    The log's floor follows them.
    """
    monkeypatch.setattr(retention, "HALVES_PER_TICK", 2)
    shell = Shell(settings(storage=StorageSettings(retention_ms=60_000))).lead()
    create(shell, TopicSet("orders", 1, 1))
    halves = [begin(shell, bytes(STEP_SIZE_MIN), f"U{number}") for number in range(5)]
    create(shell, *(HalfGivenUp(offset) for offset, _ in halves))
    shell.wall_ms += 3_600_000

    left = [5]
    while left[-1]:
        shell.pass_time(100)
        state = shell.state.transactions
        assert all(half.opened.physical >= shell.state.floor for half in state.given_up.values())
        left.append(len(state.given_up))

    assert list(dict.fromkeys(left)) == [5, 3, 1, 0]
    shell.pass_time(1_000)
    assert shell.state.floor > halves[-1][1]
    shell.replay()


def test_the_duplicate_window_forgets_tick_by_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: the window of known sends is trimmed some per tick, because a leader whose clock was not confirmed for long
    has much to trim.
    """
    monkeypatch.setattr(retention, "SENDS_PER_TICK", 2)
    shell = Shell(settings(storage=StorageSettings(dedup_window_count=1))).lead()
    create(shell, TopicSet("orders", 1, 1, order=True))
    for number in range(6):
        send(shell, props=properties(UNIQ_KEY=f"U{number}"))

    left = [6]
    while left[-1] > 1:
        shell.pass_time(100)
        left.append(len(shell.state.dedup))

    assert list(dict.fromkeys(left)) == [6, 4, 2, 1]
    shell.replay()
