"""Many changes at once: of what is under way, in one record, and in one entry."""

from collections import Counter, deque
from typing import NoReturn

import pytest

from orderlymq_broker.core.effects import Propose
from orderlymq_broker.core.entrybuilder import ENTRY_CHANGES_USUAL, in_pieces, next_group
from orderlymq_broker.core.responses import LOST_IN_PARTS
from orderlymq_broker.state.groups.lockrecords import LocksRequested
from orderlymq_broker.state.lanes.lanerecords import (
    Found,
    HandOut,
    LaneRef,
    LanesExpired,
    LanesFetched,
    LanesReported,
    QueueFetch,
    Report,
    Said,
)
from orderlymq_broker.state.records import (
    Commit,
    GroupSet,
    OffsetsCommitted,
    Record,
    TopicDeleted,
    TopicSet,
)
from tests.broker.processors.adminshell import AdminShell
from tests.broker.processors.driver import TOOL, Shell
from tests.broker.processors.requests import (
    commit_ext,
    create,
    heartbeat,
    lock,
    lock_body,
    offset_of,
)


class Unwalked(Counter[str]):
    """A counter that nobody goes over."""

    def items(self) -> NoReturn:
        raise AssertionError("went over all that is under way")


def test_settling_goes_over_nothing_but_what_is_settled() -> None:
    """Ten thousand creations may be under way; each is forgotten with the last change of its topic."""
    entries = Shell().core.context.entries
    entries.changing = Unwalked()
    proposals = [Propose([TopicSet("orders", count, count)]) for count in (1, 2)]
    other = Propose([TopicSet("invoices", 1, 1)])
    for proposal in (*proposals, other):
        assert entries.admit(proposal) is None

    entries.settle(proposals[:1])
    assert dict.copy(entries.changing) == {"orders": 1, "invoices": 1}
    entries.settle(proposals[1:])

    assert dict.copy(entries.changing) == {"invoices": 1}


MANY = ENTRY_CHANGES_USUAL // 4
REPORTED = LanesReported("g", "t", "c", (Report(0, 1, 2, Said.DONE),) * MANY)
FOUND = QueueFetch(0, 0, MANY, (HandOut(1, 1),) * (MANY // 2), (Found("", (0,), 1),) * (MANY // 2))


@pytest.mark.parametrize(
    "record",
    [
        REPORTED,
        LanesFetched("g", "t", "c", 1, 5_000, (FOUND,)),
        LocksRequested("g", "c", "h:1", 5_000, (("t", 0),) * MANY),
        OffsetsCommitted((Commit("g", "t", 0, 1),) * MANY),
        TopicDeleted("t"),  # looks at all groups
    ],
)
def test_an_entry_has_so_many_changes_and_no_more_be_they_in_few_records(record: Record) -> None:
    """A replica applies it in one go, and is heard of by nobody meanwhile."""
    shell = Shell().lead()
    proposals = [Propose([record]) for _ in range(10)]
    for proposal in proposals:
        assert shell.core.context.entries.admit(proposal) is None
    collected = deque(proposals)

    groups = [len(next_group(collected)) for _ in range(3)]

    assert (groups, len(collected)) == ([4, 4, 2], 0)


def test_works_of_many_changes_are_cut_into_pieces_of_an_entry() -> None:
    """Leases of thousands of lanes end together."""
    expired = LanesExpired("g", (LaneRef("t", 0, 1, 2),) * ENTRY_CHANGES_USUAL)

    pieces = in_pieces([expired, expired, REPORTED, REPORTED])

    assert pieces == [Propose([expired]), Propose([expired]), Propose([REPORTED, REPORTED])]


def test_a_replica_counts_what_it_applies_by_its_changes() -> None:
    """A turn of its loop ends behind so many."""
    shell = Shell().lead()
    before = shell.machine.changes

    create(shell, REPORTED, TopicSet("t", 1, 1))

    assert shell.machine.changes - before == MANY + 1


HELD = 3 * ENTRY_CHANGES_USUAL


@pytest.fixture
def holder(shell: Shell) -> Shell:
    """A leader whose client alice holds thousands of queues."""
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
    """A replica that freed it in one go would be heard of by nobody meanwhile."""
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
    """The first are stored."""
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
    """Its locks were asked for from another address."""
    said = {"clientId": "alice", "proof": "gone", "addresses": "192.0.2.77:1"}

    assert holder.call(20502, said).code == 0

    assert holder.state.locks.count_of("alice") == HELD


def test_offsets_of_a_large_topic_are_set_entry_by_entry(admin: AdminShell) -> None:
    """222 names all queues; each offset stands for itself."""
    create(admin, TopicSet("orders", HELD, HELD), GroupSet("billing"))
    heartbeat(admin, "alice")

    opaque = admin.submit(
        222, {"topic": "orders", "group": "billing", "timestamp": "0", "isForce": "true"}, peer=TOOL
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
    """Thousands of queues may move between two ticks."""
    create(shell, TopicSet("orders", HELD, HELD), GroupSet("billing"))
    heartbeat(shell, "alice")
    for queue in range(HELD):
        shell.ask(15, commit_ext(0, queue), oneway=True)

    shell.wall_ms += 100
    shell.run(shell.core.tick(shell.now))
    changes = [proposal.changes_count for proposal in shell.pending]
    shell.settle()

    assert changes == [ENTRY_CHANGES_USUAL] * 3
