"""A leader whose disk hangs gives way to a replica whose disk answers."""

import gc
from collections.abc import Iterator

import pytest

from orderlymq_broker.replication.diskstall import WriteWatch
from orderlymq_broker.replication.loop import TICKETS_MAX, TICKS_CATCH_UP_MAX
from orderlymq_raft import Append, AppendResponse, Heartbeat, Index, Ready
from orderlymq_raft.ready import WAITING_MAX
from tests.broker.replication.simulation import (
    TICK_S,
    Proposal,
    Replica,
    SimulatedGroup,
    others,
    outcomes,
    propose,
)
from tests.broker.replication.test_bootstrap import serving


@pytest.fixture
def group() -> Iterator[SimulatedGroup]:
    """Return three replicas; at the end their states agree and their invariants hold."""
    made = SimulatedGroup()
    yield made
    made.check()


STALL_S = 3.0


def hang(replica: Replica) -> tuple[list[Proposal], list[Proposal]]:
    """Let a leader's disk hang; return the proposals in its log, and those that wait."""
    replica.disk.is_fast = False
    in_log = []
    for name in ("a", "b"):
        in_log += propose(replica, name)
        replica.group.run()
        replica.group.pass_time(TICK_S)
    return in_log, propose(replica, "c")


def test_a_leader_whose_disk_hangs_steps_down(group: SimulatedGroup) -> None:
    """Law: a leader whose disk hangs steps down. Proposals in its log have an unknown outcome; the others are refused."""
    leader = group.elect()
    in_log, collected = hang(leader)

    group.pass_time(STALL_S)

    successor = next(each for each in others(group, leader) if each.loop.serving)
    assert not leader.loop.serving
    assert leader.loop.writes.is_stalled
    assert leader.loop.figures.disk_stalls == 1
    assert outcomes(collected) == ["lost"]
    assert outcomes(in_log) == ["unknown", "unknown"]
    assert {"a", "b"} <= set(successor.state.topics.by_name), "both went on without that disk"

    leader.disk.is_fast = True
    while leader.disk.waiting:
        leader.disk.finish()
        group.run()
    group.pass_time(4 * TICK_S)
    assert outcomes(in_log) == ["applied", "applied"]


def test_a_leader_whose_disk_hangs_hands_over_under_load(group: SimulatedGroup) -> None:
    """Law: when its disk hangs under load, a leader asks its successor immediately, so that nobody waits for an election."""
    leader = group.elect()
    hang(leader)
    assert len(leader.disk.waiting) == TICKETS_MAX
    while leader.node.is_leader:
        group.pass_time(TICK_S)

    group.pass_time(2 * TICK_S)

    assert any(each.loop.serving for each in others(group, leader))
    while leader.disk.waiting:
        leader.disk.finish()
        group.run()


def test_a_replica_whose_disk_hangs_is_not_elected(group: SimulatedGroup) -> None:
    """Law: a replica whose disk hangs does not become leader, because its own vote waits for the disk."""
    leader = group.elect()
    hang(leader)
    group.pass_time(STALL_S)
    successor = next(each for each in others(group, leader) if each.loop.serving)
    group.cut = {successor.id}

    group.pass_time(4 * STALL_S)
    assert not leader.node.is_leader
    assert not any(each.loop.serving for each in others(group, successor))

    leader.disk.is_fast = True
    while leader.disk.waiting:
        leader.disk.finish()
        group.run()
    group.pass_time(STALL_S)
    assert any(each.loop.serving for each in others(group, successor))


def test_a_disk_that_is_slow_keeps_its_leader(group: SimulatedGroup) -> None:
    """Law: a disk that is slow but ends its writes does not depose its leader."""
    leader = group.elect()
    leader.disk.is_fast = False
    for number in range(20):
        propose(leader, f"t{number}")
        group.pass_time(0.8)
        leader.disk.finish()
        group.run()
    leader.disk.is_fast = True
    while leader.disk.waiting:
        leader.disk.finish()
        group.run()

    assert leader.loop.serving
    assert leader.loop.figures.disk_stalls == 0


def test_slow_disks_of_all_cost_no_election(group: SimulatedGroup) -> None:
    """Law: a follower answers heartbeats while its writes wait, so that slow disks cost no election."""
    leader = group.elect()
    term = leader.node.term
    for each in group.replicas.values():
        each.disk.is_fast = False
    proposals = [proposal for name in ("a", "b", "c") for proposal in propose(leader, name)]
    for _ in range(12):
        group.pass_time(0.5)
        for each in group.replicas.values():
            if each.disk.waiting:
                each.disk.finish()
        group.run()
    for each in group.replicas.values():
        each.disk.is_fast = True
        while each.disk.waiting:
            each.disk.finish()
            group.run()
    group.pass_time(TICK_S)

    assert (leader.node.term, leader.loop.serving) == (term, True)
    assert outcomes(proposals) == ["applied"] * 3


def test_a_full_disk_keeps_its_leader(group: SimulatedGroup) -> None:
    """Law: a leader with a full disk stays: it refuses sends and serves reads, and the others' disks may be full too."""
    leader = group.elect()
    hang(leader)
    leader.loop.writes.set_full(is_full=True)

    group.pass_time(2 * STALL_S)
    assert serving(group) == [leader.id]

    leader.loop.writes.set_full(is_full=False)
    group.pass_time(STALL_S)
    assert leader.id not in serving(group), "there is space, and the disk hangs all the same"
    while leader.disk.waiting:
        leader.disk.finish()
        group.run()


def alive() -> int:
    """Return the number of heartbeats and Readys in this process's memory."""
    gc.collect()
    return sum(isinstance(each, Heartbeat | Ready) for each in gc.get_objects())


def test_a_full_disk_costs_a_leader_no_memory(group: SimulatedGroup) -> None:
    """Law: while its disk is full, a leader goes on with heartbeats and keeps none of them in memory."""
    leader = group.elect()
    hang(leader)
    leader.loop.writes.set_full(is_full=True)
    before = alive()

    group.pass_time(STALL_S)

    beats = sum(isinstance(each, Heartbeat) for each in group.delivered)
    group.delivered.clear()
    assert beats > 60
    assert alive() <= before
    while leader.disk.waiting:
        leader.disk.finish()
        group.run()


@pytest.mark.parametrize("writes", [1, TICKETS_MAX])
def test_a_full_disk_costs_a_follower_no_memory(group: SimulatedGroup, writes: int) -> None:
    """Law: a follower with a full disk keeps only the newest answers that wait, and sends them after the write."""
    leader = group.elect()
    follower = others(group, leader)[0]
    follower.disk.is_fast = False
    for number in range(writes):
        propose(leader, f"t{number}")
        group.pass_time(TICK_S)
    assert len(follower.disk.waiting) == writes
    commit, count = follower.node.commit, 3 * WAITING_MAX
    term = leader.node.term
    for index in range(1_000, 1_000 + count):
        beyond = Append(leader.id, follower.id, term, Index(index), term, commit)
        follower.loop.receive([beyond])
        group.step()
    assert group.sent == []

    while follower.disk.waiting:
        follower.disk.finish()
        group.step()

    answers = [
        each.index
        for each in group.sent
        if isinstance(each, AppendResponse) and each.index >= 1_000
    ]
    assert answers == list(range(1_000 + count - len(answers), 1_000 + count))
    assert WAITING_MAX // 2 <= len(answers) <= WAITING_MAX
    group.sent.clear()
    follower.disk.is_fast = True


def test_a_pause_of_the_process_is_not_the_disks_fault(group: SimulatedGroup) -> None:
    """Law: a pause of the process does not count as a stall of the disk."""
    leader = group.elect()
    leader.disk.is_fast = False
    propose(leader, "a")
    group.run()

    group.pass_time(2 * STALL_S, paused=group.nodes)
    group.pass_time(TICK_S)

    assert leader.node.is_leader
    assert leader.loop.figures.disk_stalls == 0
    leader.disk.finish()
    group.run()


@pytest.mark.parametrize("pause_s", [0.125, 0.5, 3.0])
def test_a_leader_that_pauses_now_and_then_steps_down_as_well(
    group: SimulatedGroup, pause_s: float
) -> None:
    """Law: repeated pauses are left out, but the disk's own waiting time still adds up."""
    leader = group.elect()
    leader.disk.is_fast = False
    propose(leader, "a")
    group.run()

    ran_s = 0.0
    while leader.node.is_leader and ran_s < 2 * STALL_S:
        group.pass_time(pause_s, paused=group.nodes)
        group.pass_time(0.5)
        ran_s += 0.5

    assert leader.loop.figures.disk_stalls == 1
    assert ran_s <= STALL_S
    leader.disk.finish()
    group.run()


def test_a_pause_counts_once_whoever_notices_it(group: SimulatedGroup) -> None:
    """Law: a pause is left out once, whether a message or the late timer notices it first."""
    leader = group.elect()
    leader.disk.is_fast = False
    propose(leader, "a")
    group.run()
    group.pass_time(1.0)
    before = leader.loop.writes.waiting_s

    leader.clock.at_s += 1.0
    leader.loop.may_answer()
    leader.loop.receive([])
    leader.loop.tick()

    counted_s = leader.loop.writes.waiting_s - before
    assert counted_s == pytest.approx(TICKS_CATCH_UP_MAX * TICK_S, abs=0.01 * TICK_S)
    group.at_s = leader.clock.at_s
    leader.disk.finish()
    group.run()


def test_a_write_that_began_within_a_pause_has_just_begun() -> None:
    """Law: a write that began during a pause counts as new; nothing is subtracted from its later time."""
    now = 0.0
    watch = WriteWatch(2.0, lambda: now)
    now = 5.0
    watch.began()
    now = 6.0

    watch.forgive(5.5)

    assert watch.waiting_s == 0.0
    now = 8.0
    assert watch.is_stalled


def test_the_only_replica_keeps_its_place_whatever_its_disk_does() -> None:
    """Law: the only voter keeps its leadership with a hanging disk, because no other could answer reads."""
    group = SimulatedGroup(1)
    leader = group.elect()
    leader.disk.is_fast = False
    propose(leader, "a")

    group.pass_time(2 * STALL_S)

    assert leader.loop.serving


@pytest.mark.parametrize("sync_writes", [True, False])
def test_the_time_of_a_disk_is_that_of_synced_writes(sync_writes: bool) -> None:
    """Law: only synced writes are measured; a write without sync would hide a slow disk."""
    group = SimulatedGroup(sync_writes=sync_writes)
    leader = group.elect()
    measured: list[float] = []
    leader.loop.figures.on_sync = measured.append

    leader.loop.submit([Proposal("a").effect])
    group.run()

    assert len(measured) == sync_writes
