from dataclasses import replace
from itertools import product

import pytest

from orderlymq_operator.brokers.answers import LockHolder
from orderlymq_operator.kube.observe.pods import pod_facts
from orderlymq_operator.kube.resources import Json
from orderlymq_operator.kube.takeover.proof import OUT_OF_SERVICE, Binding, bind, host_of, proof_of
from tests.operator.kube.samples import killing, pod, started

LIVING = pod_facts(pod())
CLIENT = "10.244.1.9@1#7"
BOUND = Binding(CLIENT, "one", ("2026-01-01T00:00:00Z",))
HEALTHY: Json = {"spec": {}}
SILENT: Json = {"spec": {"taints": [{"key": "node.kubernetes.io/unreachable"}]}}
OFF: Json = {"spec": {"taints": [{"key": OUT_OF_SERVICE}]}}
SUCCESSOR = pod_facts(pod(uid="two"))
ENDED = pod_facts(pod(containerStatuses=[{"name": "main", "state": {"terminated": {}}}]))
RESTARTED = pod_facts(pod(containerStatuses=[started("2026-01-01T00:05:00Z")]))


def test_a_client_is_bound_to_the_pod_that_has_its_address() -> None:
    """Law: a client is bound to the pod with its address, in whatever form; a node's or outside address belongs to no pod."""
    pods = {LIVING.ip: LIVING}

    assert bind(CLIENT, LockHolder("10.244.1.9:40001", True, frozenset()), pods) == BOUND
    assert bind(CLIENT, LockHolder("[::ffff:10.244.1.9]:40001", True, frozenset()), pods) == BOUND
    assert bind(CLIENT, LockHolder("172.18.0.3:40001", True, frozenset()), pods) is None


@pytest.mark.parametrize(
    ("client_id", "is_bound"),
    [
        (CLIENT, True),
        ("10.244.1.9@chosen@unit", True),
        ("fd00:10::9@1#7", True),
        ("[fd00:10:0:0:0:0:0:9%eth0]@DEFAULT", True),
        ("192.168.7.5@4242#1", False),
        ("web-1@1#7", False),
        ("", False),
    ],
)
@pytest.mark.parametrize("address", ["10.244.1.9:4711", "[fd00:10::9]:4711"])
def test_the_end_of_a_proxys_pod_proves_nothing_about_who_is_behind_it(
    client_id: str, is_bound: bool, address: str
) -> None:
    """Law: a client behind a proxy is not bound to it: the first part of its id says where it runs,
    in a dual stack by either address.
    """
    both = pod_facts(pod(podIPs=[{"ip": "10.244.1.9"}, {"ip": "fd00:10::9"}]))
    pods = dict.fromkeys(both.ips, both)

    bound = bind(client_id, LockHolder(address, True, frozenset()), pods)

    assert (bound is not None) is is_bound


def test_a_client_stays_in_its_pod_when_another_container_is_started_later() -> None:
    """Law: a client stays bound to its pod if another container (a slow or restarted sidecar) starts later."""
    pod_then = replace(LIVING, starts=("s1", None))
    bound = bind(CLIENT, LockHolder(f"{LIVING.ip}:1", True, frozenset()), {LIVING.ip: pod_then})
    assert bound is not None

    assert bound.is_in(pod_then)
    assert bound.is_in(replace(LIVING, starts=("s1", "s2")))
    assert not bound.is_in(replace(LIVING, starts=("s3", "s2"))), "its container has ended since"
    assert not bound.is_in(replace(LIVING, uid="two", starts=("s1", None)))
    assert not Binding(CLIENT, LIVING.uid, (None,)).is_in(LIVING), "nothing ran that could end"


def test_a_pod_that_lives_is_no_proof() -> None:
    """Law: a living pod is no proof of death, nor one that is only being deleted or marked as failed:
    its node may be cut off.
    """
    for facts in ({"deleting": True}, {"phase": "Failed"}, {}):
        found = replace(LIVING, **facts)
        for node in (HEALTHY, SILENT, None):
            assert proof_of(LIVING, found, node, found, [killing()]) is None


@pytest.mark.parametrize("now", [None, SUCCESSOR])
@pytest.mark.parametrize("node", [HEALTHY, SILENT])
def test_a_pod_that_is_gone_is_no_proof_by_itself(now: object, node: Json) -> None:
    """Law: a deleted pod alone is no proof: deleted by force, its processes may run on while the kubelet is down."""
    found = SUCCESSOR if now is not None else None

    for last in (None, LIVING, replace(LIVING, deleting=True)):
        assert proof_of(LIVING, found, node, last) is None


@pytest.mark.parametrize("now", [None, SUCCESSOR])
@pytest.mark.parametrize("node", [HEALTHY, SILENT])
def test_the_last_word_of_the_kubelet_about_a_pod_that_is_gone_is_proof(
    now: object, node: Json
) -> None:
    """Law: a deleted pod is proven dead if its kubelet last said that all containers had ended, or were being killed."""
    found = SUCCESSOR if now is not None else None

    for last, kills in ((ENDED, []), (RESTARTED, []), (LIVING, [killing()])):
        proof = proof_of(LIVING, found, node, last, kills)
        assert proof is not None
        assert proof.whole
        assert not proof.overrules


@pytest.mark.parametrize(
    "wrong",
    [
        {"at": "2026-01-01T00:00:00Z"},
        {"at": "2025-12-31T23:59:59Z"},
        {"uid": "two"},
        {"component": "somebody"},
        {"container": "helper"},
        {"reason": "Started"},
    ],
)
def test_a_kill_counts_only_for_the_container_that_ran_then(wrong: dict[str, str]) -> None:
    """Law: a kill event counts only for the container that ran then;
    one in the second of its start may be about the former one.
    """
    assert proof_of(LIVING, None, HEALTHY, None, [killing(**wrong)]) is None


def test_every_container_must_have_been_killed() -> None:
    """Law: every container that ran must have been killed, because nobody knows in which one the client runs."""
    start = "2026-01-01T00:00:00Z"
    both = replace(LIVING, containers=("main", "helper", "init"), starts=(start, start, None))
    kills = [killing(), killing(container="helper")]

    assert proof_of(both, None, HEALTHY, None, kills[:1]) is None
    assert proof_of(both, None, HEALTHY, None, kills) is not None


def test_a_node_that_is_gone_with_its_pod_is_proof() -> None:
    """Law: a node that is gone with its pod is proof; a pod without a known node is not."""
    assert proof_of(LIVING, None, None) is not None
    assert proof_of(replace(LIVING, node=""), None, None) is None


def test_a_restarted_container_is_proof_for_the_client_that_ran_in_it() -> None:
    """Law: a container's restart is proof for the client that ran before it, never for a connected client,
    which may be the new one.
    """
    for found, node in product((RESTARTED, ENDED), (HEALTHY, SILENT, None)):
        proof = proof_of(LIVING, found, node)
        assert proof is not None
        assert not proof.whole
        assert not proof.overrules


def test_a_pod_in_whose_phase_nothing_is_started_again_has_ended_as_a_whole() -> None:
    """Law: a pod in a phase without restarts has ended as a whole; one whose containers start again must be looked at
    again.
    """
    for phase, whole in (("Succeeded", True), ("Failed", True), ("Running", False)):
        proof = proof_of(LIVING, replace(ENDED, phase=phase), HEALTHY)
        assert proof is not None
        assert proof.whole is whole
    again = proof_of(LIVING, replace(RESTARTED, phase="Failed"), HEALTHY)
    assert again is not None
    assert not again.whole


def test_a_restarted_helper_beside_a_living_consumer_is_no_proof() -> None:
    """Law: a restarted helper beside a living consumer is no proof: all containers, also init containers, must have ended."""
    early = {"name": "early", "state": {"running": {"startedAt": "2026-01-01T00:00:01Z"}}}
    both = pod_facts(pod(initContainerStatuses=[early]))
    changed = [started("2026-01-01T00:07:00Z")]
    helper = pod_facts(pod(containerStatuses=changed, initContainerStatuses=[early]))

    assert proof_of(both, helper, HEALTHY) is None


def test_a_node_out_of_service_is_proof_whatever_becomes_of_the_connection() -> None:
    """Law: the out-of-service taint of a node is proof even if the connection stands,
    because somebody says that the machine is off.
    """
    for found in (LIVING, None, SUCCESSOR):
        proof = proof_of(LIVING, found, OFF)
        assert proof is not None
        assert proof.overrules


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("10.0.0.1:80", "10.0.0.1"),
        ("[fd00::1]:80", "fd00::1"),
        ("::ffff:10.0.0.1:80", "10.0.0.1"),
        ("somewhere:80", "somewhere"),
    ],
)
def test_the_host_of_an_address(address: str, host: str) -> None:
    """Law: the host of an address has the form that pods have in their status."""
    assert host_of(address) == host
