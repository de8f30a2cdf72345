"""Leases of more locks than one tick handles begin and end over several ticks."""

from orderlymq_broker.processors.groups.locks import ENDED_MAX, STARTED_MAX
from orderlymq_broker.state.groups.lockrecords import LocksRequested
from orderlymq_broker.state.records import Commit, GroupSet, OffsetsReset, TopicSet
from tests.broker.processors.driver import Shell
from tests.broker.processors.requests import create, heartbeat, lock

LEASE_MS = 60_000
QUEUES = 1_024


def lead_with_locks(topics: int) -> Shell:
    """Return a leader with so many topics; `alice` has locked all their queues for `billing`."""
    shell = Shell().lead()
    create(shell, GroupSet("billing"))
    for number in range(topics):
        topic = f"orders-{number}"
        create(shell, TopicSet(topic, QUEUES, QUEUES))
        names = tuple((topic, queue) for queue in range(QUEUES))
        create(shell, LocksRequested("billing", "alice", "192.0.2.1:1", LEASE_MS, names))

    return shell


def test_a_new_leader_of_many_locks_begins_their_leases_in_several_ticks() -> None:
    """Law: a new leader begins many leases over several ticks, so that it is not silent; each ends at the right time."""
    topics = STARTED_MAX // QUEUES + 1
    shell = lead_with_locks(topics)
    shell.follow()
    shell.monotonic_ms += 1_000
    shell.term += 1
    shell.run(shell.core.become_leader(shell.term, shell.state.physical_end, shell.now))
    assert len(shell.core.locks.leased()) == STARTED_MAX

    # This one is renewed before its turn, so it ends by that renewal.
    shell.monotonic_ms += 30_000
    last = f"orders-{topics - 1}"
    assert lock(shell, "alice", QUEUES - 1, topic=last) == {QUEUES - 1: 1}
    shell.pass_time(500)
    assert len(shell.core.locks.leased()) == topics * QUEUES

    shell.pass_time(LEASE_MS - 31_000, step=1_000)
    shell.pass_time(100)
    assert shell.state.locks.held_count == 1
    assert shell.state.locks.get("billing", last, QUEUES - 1) is not None
    shell.pass_time(32_000, step=1_000)
    assert shell.state.locks.held_count == 0


def test_a_lease_ends_though_an_offset_was_reset_before_its_turn_at_a_new_leader() -> None:
    """Law: a reset before a lease's turn at a new leader changes its epoch, but the lease still ends."""
    topics = STARTED_MAX // QUEUES + 1
    shell = lead_with_locks(topics)
    shell.follow()
    shell.term += 1
    shell.run(shell.core.become_leader(shell.term, shell.state.physical_end, shell.now))

    create(shell, OffsetsReset((Commit("billing", f"orders-{topics - 1}", 5, 0),), fences=True))
    shell.pass_time(500)
    shell.pass_time(LEASE_MS + 5_000, step=1_000)

    assert shell.state.locks.held_count == 0


def test_many_leases_that_are_over_together_end_in_several_ticks() -> None:
    """Law: many leases that end together are freed over several ticks, and their holder leaves the group."""
    topics = ENDED_MAX // QUEUES + 1
    shell = lead_with_locks(topics)
    heartbeat(shell, "alice")
    shell.core.context.sessions.leave("billing", "alice")
    shell.monotonic_ms += LEASE_MS + 1

    shell.run(shell.core.tick(shell.now))
    shell.settle()
    assert shell.state.locks.held_count == topics * QUEUES - ENDED_MAX
    assert shell.state.members.get("billing", "alice") is not None

    shell.pass_time(100)
    assert shell.state.locks.held_count == 0
    assert shell.state.members.get("billing", "alice") is None
    assert shell.core.context.counters["leases_expired"] == topics * QUEUES
