"""Several observations prove that a process is lost: in virtual time, with looks that fail at random."""

from dataclasses import replace
from random import Random

import pytest

from orderlymq_operator.plan.actions import (
    ObservedGroup,
    ObservedNameServer,
    ObservedReplica,
    RestartReplica,
    TransferLeadership,
)
from orderlymq_operator.plan.liveness import (
    OBSERVATIONS_MIN,
    SURE_MS,
    FailureDetector,
    ProcessState,
)
from orderlymq_operator.plan.replicas import replica_actions
from orderlymq_operator.plan.settings import revision
from tests.operator.examples import cluster

_SILENT = ObservedReplica("voter", running=True)
_STEP_MS = 1_000
_CLUSTER = cluster()


def _look(
    detector: FailureDetector, replica: ObservedReplica, witness: ProcessState, now_ms: int
) -> ObservedReplica:
    found = ObservedGroup(None, {1: replica})
    return detector.group("demo-0", found, {1: witness}, now_ms).replicas[1]


def test_silence_is_believed_after_several_looks_over_some_seconds() -> None:
    """Law: a process counts as silent only after several looks over some seconds; many at once, or two far apart,
    are too few.
    """
    quick, rare = FailureDetector(), FailureDetector()

    often = [_look(quick, _SILENT, ProcessState("a"), now) for now in range(OBSERVATIONS_MIN * 2)]
    seldom = [
        _look(rare, _SILENT, ProcessState("a"), SURE_MS * now) for now in range(OBSERVATIONS_MIN)
    ]

    assert not any(found.ended or found.failing for found in often)
    assert [found.ended for found in seldom] == [False] * (OBSERVATIONS_MIN - 1) + [True]
    assert [found.failing for found in seldom] == [False] * (OBSERVATIONS_MIN - 1) + [True]


@pytest.mark.parametrize("answers", [1, 2])
def test_one_answer_ends_a_silence(answers: int) -> None:
    """Law: one answer ends a silence, and so does a new process in the same place."""
    detector = FailureDetector()
    for now_ms in range(0, 3 * SURE_MS, _STEP_MS):
        _look(detector, _SILENT, ProcessState("a"), now_ms)

    well = replace(_SILENT, answers=True, healthy=True)
    other = FailureDetector()
    for now_ms in range(0, 3 * SURE_MS, _STEP_MS):
        _look(other, _SILENT, ProcessState("a"), now_ms)
    _look(detector, well, ProcessState("a"), 3 * SURE_MS)

    assert not _look(detector, _SILENT, ProcessState("a"), 3 * SURE_MS + answers).ended
    assert not _look(other, _SILENT, ProcessState("b"), 3 * SURE_MS + answers).ended


def test_the_keeper_of_a_process_is_the_second_witness() -> None:
    """Law: if the kubelet finds a silent process ready, it is not lost: only our connection is cut."""
    detector = FailureDetector()
    found = _SILENT
    for now_ms in range(0, 3 * SURE_MS, _STEP_MS):
        found = _look(detector, _SILENT, ProcessState("a", ready=True, runs=True), now_ms)
    assert not found.failing
    assert not found.ended

    unready = _look(detector, _SILENT, ProcessState("a", runs=True), 3 * SURE_MS)
    assert unready.failing
    assert not unready.ended


def test_name_servers_are_lost_by_the_same_rule() -> None:
    """Law: name servers are judged by the same rule."""
    detector = FailureDetector()
    found = {}
    for now_ms in range(0, 2 * SURE_MS, _STEP_MS):
        process_states = {0: ProcessState("a"), 1: ProcessState("b", ready=True)}
        servers = {0: ObservedNameServer(), 1: ObservedNameServer()}
        found = detector.name_servers(servers, process_states, now_ms)

    assert [found[0].failing, found[1].failing] == [True, False]


class Roll:
    """A group of three replicas that gets new settings, under an operator whose looks fail at random.

    A restarted replica is away for some looks; while two are away there is no leader.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.current = revision(_CLUSTER)
        self.revisions = dict.fromkeys((1, 2, 3), "old")
        self.away_until = dict.fromkeys((1, 2, 3), -1)
        self.leader: int | None = 1
        self.detector = FailureDetector()
        self.now_ms = 0

    def step(self) -> None:
        """Look once and do what the plan says; two replicas may never be away at once."""
        self.now_ms += _STEP_MS
        away = {node for node, until in self.away_until.items() if self.now_ms < until}
        if self.leader in away:
            self.leader = min({1, 2, 3} - away)
        blind = {node for node in (1, 2, 3) if self.random.random() < 0.4}
        sees_leader = self.leader not in blind
        replicas = {
            node: ObservedReplica(
                "voter" if sees_leader else "outside",
                running=True,
                answers=node not in away | blind,
                healthy=node not in away | blind and sees_leader,
                caught_up=node not in away,
                revision=found,
            )
            for node, found in self.revisions.items()
        }
        # The kubelet is right, but reports two looks late that a replica is back.
        back = {node: until + 2 * _STEP_MS for node, until in self.away_until.items()}
        process_states = {
            node: ProcessState(found, ready=self.now_ms >= back[node], runs=node not in away)
            for node, found in self.revisions.items()
        }
        observed = ObservedGroup(self.leader if sees_leader else None, replicas, {}, {})
        observed = self.detector.group("demo-0", observed, process_states, self.now_ms)
        for action in replica_actions(_CLUSTER, {"demo-0": observed}):
            match action:
                case RestartReplica(_, node):
                    assert not away - {node}, f"{node} is restarted while {away} are away"
                    assert node != self.leader, "a leader is restarted"
                    self.revisions[node] = self.current
                    self.away_until[node] = self.now_ms + self.random.randrange(8) * _STEP_MS
                    away.add(node)
                case TransferLeadership(_, node):
                    assert node not in away
                    self.leader = node
                case _:
                    raise AssertionError(action)


@pytest.mark.parametrize("seed", range(20))
def test_a_roll_with_blind_looks_takes_one_replica_at_a_time_and_ends(seed: int) -> None:
    """Law: in a roll with failing looks a healthy replica is never restarted while another one is away, and the roll ends."""
    roll = Roll(seed)

    for _ in range(200):
        roll.step()

    assert set(roll.revisions.values()) == {roll.current}
