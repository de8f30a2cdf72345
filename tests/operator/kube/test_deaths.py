from dataclasses import replace

import pytest

from orderlymq_operator.kube.deaths import ABSENT_S, Binding, Proof, bind, host_of, proof_of
from orderlymq_operator.kube.podfacts import pod_facts
from orderlymq_operator.kube.resources import Json
from tests.operator.kube.objects import pod, started

LIVING = pod_facts(pod())
BOUND = Binding("client", "shop", "consumer", "one", "worker", ("2026-01-01T00:00:00Z",))
HEALTHY: Json = {"spec": {}}


def test_a_client_is_bound_to_the_pod_that_has_its_address() -> None:
    """Whatever the form of the address; an address of a node or from outside is no pod's."""
    pods = {LIVING.ip: LIVING}

    assert bind("client", "10.244.1.9:40001", pods) == BOUND
    assert bind("client", "[::ffff:10.244.1.9]:40001", pods) == BOUND
    assert bind("client", "172.18.0.3:40001", pods) is None


def test_a_pod_that_lives_is_no_proof() -> None:
    """Nor is one that is only being deleted: it has its grace period."""
    deleting = replace(LIVING, deleting=True)

    assert proof_of(BOUND, LIVING, HEALTHY) is None
    assert proof_of(BOUND, deleting, HEALTHY) is None


def test_an_absent_pod_is_proof_once_its_processes_cannot_run_any_more() -> None:
    """Deleted by force it disappears before its processes: their connection or some seconds decide."""
    assert proof_of(BOUND, None, HEALTHY) == Proof(
        "pod shop/consumer does not exist any more", ABSENT_S
    )
    successor = pod_facts(pod(uid="two"))
    assert proof_of(BOUND, successor, HEALTHY) == Proof(
        "pod shop/consumer is another one now", ABSENT_S
    )


def test_a_restarted_container_is_proof_for_the_client_that_ran_in_it() -> None:
    """Never for one that is connected: it may be the new one, which a late status showed as the old."""
    restarted = pod_facts(pod(containerStatuses=[started("2026-01-01T00:05:00Z")]))
    ended = pod_facts(pod(containerStatuses=[{"name": "main", "state": {"terminated": {}}}]))

    for found in (restarted, ended):
        proof = proof_of(BOUND, found, HEALTHY)
        assert proof is not None
        assert proof.patience_s is None


def test_a_restarted_helper_beside_a_living_consumer_is_no_proof() -> None:
    """Which container a client runs in is not known: all must have ended."""
    both = replace(BOUND, starts=("2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"))
    helper = replace(LIVING, starts=("2026-01-01T00:00:00Z", "2026-01-01T00:07:00Z"))

    assert proof_of(both, helper, HEALTHY) is None


def test_a_node_out_of_service_is_proof_and_one_that_is_only_silent_is_none() -> None:
    """The taint is somebody's word that the machine is off; NotReady is not."""
    off = {"spec": {"taints": [{"key": "node.kubernetes.io/out-of-service"}]}}
    silent = {"spec": {"taints": [{"key": "node.kubernetes.io/unreachable"}]}}

    assert proof_of(BOUND, LIVING, silent) is None
    assert proof_of(BOUND, LIVING, off) == Proof(
        "node worker of pod shop/consumer is out of service", 0
    )


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
    """As pods write it in their status."""
    assert host_of(address) == host
