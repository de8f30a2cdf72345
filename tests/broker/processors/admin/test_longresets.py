"""Resets of many queues: the offsets are searched in steps, set together, and refused if topic or group changed meanwhile."""

from collections.abc import Iterator

import pytest

from orderlymq_broker.core import listings
from orderlymq_broker.core.effects import Propose
from orderlymq_broker.core.responses import LOST
from orderlymq_broker.settings import StorageSettings
from orderlymq_broker.state.records import (
    Commit,
    GroupDeleted,
    GroupSet,
    OffsetsReset,
    Record,
    TopicDeleted,
    TopicSet,
)
from orderlymq_broker.store.kv import Family
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.body.messagequeue import MessageQueue
from tests.broker.processors.adminshell import AdminShell
from tests.broker.processors.driver import ALICE, START_MS, TOOL, settings
from tests.broker.processors.requests import create, heartbeat, offset_of, send
from tests.broker.store.memory import MemoryStore

QUEUES = 12
# Queues searched in one step here; each has two messages, and a search reads both.
STEP_QUEUES = 2
FOUND = dict.fromkeys(range(QUEUES), 1)


class CountingStore(MemoryStore):
    """A store that counts what is read."""

    reads = 0

    def base_get(self, family: Family, key: bytes) -> bytes | None:
        """Return the committed value of *key*."""
        self.reads += 1
        return super().base_get(family, key)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> Iterator[AdminShell]:
    """A leader with a topic of several queues, messages at 0 s and at 1 s in each, and a member that has read all."""
    monkeypatch.setattr(listings, "STEP_WORK_MAX", 10 * STEP_QUEUES)
    shell = AdminShell(settings(storage=StorageSettings(tail_cache_size=0)), CountingStore())
    shell.lead()
    create(shell, TopicSet("orders", QUEUES, QUEUES), GroupSet("billing"))
    heartbeat(shell, "alice")
    for _ in range(2):
        for queue in range(QUEUES):
            send(shell, e=queue)
        shell.wall_ms += 1_000
    create(shell, offsets(2))
    yield shell
    shell.settle()
    shell.replay()
    shell.restart()


def offsets(at: int) -> OffsetsReset:
    """Return the record that sets the offsets of all queues."""
    return OffsetsReset(tuple(Commit("billing", "orders", queue, at) for queue in range(QUEUES)))


def begin(shell: AdminShell, *, force: bool = True) -> int:
    """Request a reset to 1 s."""
    ext = {"topic": "orders", "group": "billing", "timestamp": str(START_MS + 1_000)}
    opaque = shell.submit(222, {**ext, "isForce": str(force).lower()}, caller=TOOL)
    assert (shell.reply_to(opaque), len(shell.later), shell.pending) == (None, 1, [])
    return opaque


def meanwhile(shell: AdminShell, *records: Record) -> None:
    """Apply records while the offsets of a reset are being searched."""
    later, shell.later = shell.later, []
    create(shell, *records)
    shell.later += later


def ended(shell: AdminShell, opaque: int) -> tuple[int, dict[int, int | None], int]:
    """Return the answer's code, the stored offsets, and how many members were told."""
    shell.settle()
    reply = shell.reply_to(opaque)
    assert reply is not None
    stored = {queue: offset_of(shell, queue) for queue in range(QUEUES)}
    informed = sum(s.command.code == 220 and not s.command.is_response for s in shell.sent)

    return reply.code, stored, informed


def test_a_step_searches_few_queues(large: AdminShell) -> None:
    """Law: a step searches few queues, because each search reads a dozen entries and a topic has thousands of queues."""
    assert isinstance(large.store, CountingStore)
    steps: list[int] = []
    before = large.store.reads
    opaque = begin(large)
    steps.append(large.store.reads - before)
    while large.later:
        before = large.store.reads
        large.go_on()
        steps.append(large.store.reads - before)

    assert (max(steps), sum(steps)) == (2 * STEP_QUEUES, 2 * QUEUES)
    assert ended(large, opaque) == (0, FOUND, 1)
    reply = large.reply_to(opaque)
    assert reply is not None
    table = {MessageQueue("orders", "broker-a", queue): at for queue, at in FOUND.items()}
    assert fastjson.loads(reply.body) == {"offsetTable": table}
    (told,) = [s.command for s in large.sent if s.command.code == 220]
    assert told.body == reply.body


def test_offsets_are_found_first_and_set_together(large: AdminShell) -> None:
    """Law: all offsets are found before the first is stored."""
    begin(large)

    while not large.pending:
        assert {offset_of(large, queue) for queue in range(QUEUES)} == {2}
        large.go_on()

    (proposal,) = large.pending
    assert proposal.changes_count == QUEUES


def test_a_reset_ends_with_the_leadership(large: AdminShell) -> None:
    """Law: a reset ends with the leadership and is answered as lost."""
    opaque = begin(large)
    large.follow()
    large.lead()

    code, stored, informed = ended(large, opaque)

    assert (code, set(stored.values()), informed) == (1, {2}, 0)
    reply = large.reply_to(opaque)
    assert reply is not None
    assert reply.remark == LOST


@pytest.mark.parametrize(
    "records",
    [
        [TopicDeleted("orders")],
        [TopicDeleted("orders"), TopicSet("orders", QUEUES, QUEUES)],
        [GroupDeleted("billing", clean_offsets=True), GroupSet("billing")],
    ],
)
def test_what_is_deleted_meanwhile_gets_no_offset(large: AdminShell, records: list[Record]) -> None:
    """Law: a topic or group deleted meanwhile gets no offsets, nor does a new one with its name."""
    opaque = begin(large)
    meanwhile(large, *records)
    heartbeat(large, "alice")

    code, stored, informed = ended(large, opaque)

    assert (code, set(stored.values()) & {1}, informed) == (1, set(), 0)


def test_a_deletion_that_is_under_way_refuses_a_reset(large: AdminShell) -> None:
    """Law: a reset is refused if a deletion of the topic is proposed."""
    opaque = begin(large)
    large.run([Propose([TopicDeleted("orders")])])
    while large.later:
        large.go_on()

    reply = large.reply_to(opaque)
    assert reply is not None
    assert (reply.code, reply.remark) == (1, "topic[orders] is being deleted")


def test_a_group_whose_members_leave_meanwhile_answers_206(large: AdminShell) -> None:
    """Law: if all members leave meanwhile, the answer is 206, on which tools set the offsets one by one."""
    opaque = begin(large)
    large.run(large.core.connection_closed(ALICE.connection))

    code, stored, informed = ended(large, opaque)

    assert (code, set(stored.values()), informed) == (206, {2}, 0)


def test_queues_that_come_meanwhile_stay_as_they_are(large: AdminShell) -> None:
    """Law: queues added meanwhile are not reset."""
    opaque = begin(large)
    meanwhile(large, TopicSet("orders", QUEUES + 1, QUEUES + 1))

    assert ended(large, opaque) == (0, FOUND, 1)
    assert large.state.offsets.get("billing", "orders", QUEUES) is None


@pytest.mark.parametrize(
    ("records", "is_force", "expected"),
    [
        ([], False, (0, {1}, 1)),
        ([offsets(0)], True, (0, {1}, 1)),
        ([offsets(0)], False, (1, {0}, 0)),
    ],
)
def test_a_group_that_is_set_back_meanwhile_is_not_moved_forward_without_force(
    large: AdminShell,
    records: list[Record],
    is_force: bool,
    expected: tuple[int, set[int | None], int],
) -> None:
    """Law: without force, a reset compares with the offsets at the end of its search, so that it moves none forward."""
    opaque = begin(large, force=is_force)
    meanwhile(large, *records)

    code, stored, informed = ended(large, opaque)

    assert (code, set(stored.values()), informed) == expected


def test_resets_are_set_in_the_order_in_which_they_were_asked_for(large: AdminShell) -> None:
    """Law: two resets take effect in the order of their requests; the later one wins."""
    first = begin(large)
    ext = {"topic": "orders", "group": "billing", "timestamp": "0", "isForce": "true"}
    second = large.submit(222, ext, caller=TOOL)

    code, stored, informed = ended(large, second)

    assert (code, set(stored.values()), informed) == (0, {0}, 2)
    reply = large.reply_to(first)
    assert reply is not None
    assert reply.code == 0
