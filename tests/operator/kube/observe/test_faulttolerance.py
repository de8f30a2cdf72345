"""Where the scheduler places our pods, and what the loss of each zone and node leaves."""

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.placement import HOSTNAME
from orderlymq_operator.kube.objects.pods import broker_pod
from orderlymq_operator.kube.observe.cluster import Live
from orderlymq_operator.kube.observe.faulttolerance import Tolerance, fault_tolerance, tolerance
from orderlymq_operator.kube.observe.pods import pod_facts
from orderlymq_operator.kube.resources import Json
from orderlymq_operator.resources.kinds import Cluster
from tests.operator.kube.samples import cluster, pod

ZONE = "topology.kubernetes.io/zone"
_EXAMPLE = Path(__file__).parents[4] / "examples" / "kubernetes" / "production.yaml"
Nodes = dict[str, dict[str, str]]


def _nodes(zones: int, each: int) -> Nodes:
    """Nodes with their labels."""
    return {
        f"{zone}{number}": {ZONE: zone, HOSTNAME: f"{zone}{number}"}
        for zone in "abcde"[:zones]
        for number in range(each)
    }


def _scheduled(made: Cluster, nodes: Nodes, seed: int) -> list[str]:
    """Return each replica's node in the first group, as a scheduler chooses that obeys the pods' constraints."""
    random = Random(seed)
    form = broker_pod(made, "demo-0", image="i:1", pull_policy="Always", revision="r")["spec"]
    rules = form.get("topologySpreadConstraints", [])
    anti = form.get("affinity", {}).get("podAntiAffinity", {})
    apart = [
        term["topologyKey"]
        for term in anti.get("requiredDuringSchedulingIgnoredDuringExecution", [])
    ]
    placed: list[str] = []

    def there(node: str, key: str) -> int:
        return sum(nodes[other][key] == nodes[node][key] for other in placed)

    def allowed(node: str) -> bool:
        strict = [rule for rule in rules if rule["whenUnsatisfiable"] == "DoNotSchedule"]
        return not any(there(node, key) for key in apart) and all(
            there(node, rule["topologyKey"]) + 1
            <= min(there(other, rule["topologyKey"]) for other in nodes) + rule["maxSkew"]
            for rule in strict
        )

    for _ in range(made.spec.replicas_per_group):
        fitting = [node for node in nodes if allowed(node)]
        if not fitting:
            break
        crowded = {n: [there(n, rule["topologyKey"]) for rule in rules] for n in fitting}
        best = min(map(sum, crowded.values()))
        placed.append(random.choice([n for n, c in crowded.items() if sum(c) == best]))
    return placed


def _example() -> Cluster:
    found = next(yaml.safe_load_all(_EXAMPLE.read_text(encoding="utf-8")))
    return cluster(**found["spec"])


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("zones", "spare"), [(3, 0), (5, 1)])
def test_the_example_for_production_keeps_its_majority_without_any_one_zone(
    zones: int, spare: int, seed: int
) -> None:
    """Law: the example for production keeps its majority without any one zone or node."""
    made, nodes = _example(), _nodes(zones, 3)

    placed = _scheduled(made, nodes, seed)

    assert len(placed) == 5
    for zone in {labels[ZONE] for labels in nodes.values()}:
        left = [node for node in placed if nodes[node][ZONE] != zone]
        assert len(left) >= 3 + spare
    assert tolerance([nodes[node][ZONE] for node in placed]).spare == spare
    assert max(Counter(placed).values()) == 1


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "placement",
    [
        {},
        {"topologyKey": ZONE},
        {"zoneKey": ZONE},
        {"zoneKey": ZONE, "antiAffinity": "Required"},
        {"topologyKey": ZONE, "antiAffinity": "Required"},
    ],
)
def test_replicas_never_share_a_node_while_there_are_enough(
    placement: dict[str, Any], seed: int
) -> None:
    """Law: replicas never share a node if there are enough; with a zone label each zone has one of three."""
    nodes = _nodes(3, 2)

    placed = _scheduled(cluster(placement=placement), nodes, seed)

    assert len(set(placed)) == 3
    if placement:
        assert len({nodes[node][ZONE] for node in placed}) == 3


def test_strict_spreading_puts_no_pod_where_it_would_be_uneven() -> None:
    """Law: strict spreading lets the last replica wait if a zone has too few nodes; the preferred form does not."""
    strict = cluster(replicasPerGroup=5, placement={"zoneKey": ZONE, "antiAffinity": "Required"})
    easy = cluster(replicasPerGroup=5, placement={"zoneKey": ZONE})
    nodes = {"a0": _nodes(3, 3)["a0"], **{n: x for n, x in _nodes(3, 3).items() if n[0] == "b"}}

    assert len(_scheduled(strict, nodes, 0)) == 3
    assert len(_scheduled(easy, nodes, 0)) == 5


@pytest.mark.parametrize(
    ("replicas", "domains", "spare"),
    [(1, 1, -1), (3, 1, -2), (3, 2, -1), (3, 3, 0), (5, 2, -1), (5, 3, 0), (5, 4, 0), (5, 5, 1)],
)
def test_what_the_loss_of_the_fullest_domain_leaves(
    replicas: int, domains: int, spare: int
) -> None:
    """Law: the loss of the fullest domain is computed from the counts;
    only five replicas over five domains leave one more than a majority.
    """
    placed = [str(number % domains) for number in range(replicas)]

    assert tolerance(placed).spare == spare
    assert tolerance(["b", "a", "b"]) == Tolerance("b", 2, 3)


def _report(nodes: list[str], labels: Nodes, **placement: str) -> tuple[str, str]:
    made = cluster(placement=placement)
    live = Live()
    for number, node in enumerate(nodes):
        found: Json = pod(f"demo-0-{number}")
        found["metadata"]["labels"] = {names.LABEL_GROUP: "0"}
        found["spec"]["nodeName"] = node
        live.pods[found["metadata"]["name"]] = pod_facts(found)
    report = fault_tolerance(made, live, lambda node, key: labels.get(node, {}).get(key, ""))
    return report.status, report.message


def test_a_condition_reports_what_cannot_hold() -> None:
    """Law: the condition is False if two of three share a domain, and Unknown if a place is not known."""
    labels = _nodes(3, 2)

    assert _report(["a0", "b0", "c0"], labels, zoneKey=ZONE)[0] == "True"
    assert "none more" in _report(["a0", "b0", "c0"], labels, zoneKey=ZONE)[1]
    assert _report(["a0", "a1", "c0"], labels, zoneKey=ZONE)[0] == "False"
    assert f"{ZONE}=a" in _report(["a0", "a1", "c0"], labels, zoneKey=ZONE)[1]
    assert _report(["a0", "a1", "c0"], labels)[0] == "True"
    assert _report(["a0", "a0", "c0"], labels)[0] == "False"
    assert _report(["a0", "b0", ""], labels)[0] == "Unknown"
    assert _report(["a0", "b0", "c0"], {}, zoneKey=ZONE)[0] == "Unknown"
