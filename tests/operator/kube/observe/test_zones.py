"""The zones of nodes and of the pods on them."""

import pytest

from orderlymq_operator.kube.observe.zones import ZONE, Zones
from orderlymq_operator.kube.resources import Json
from tests.operator.kube.smallcluster import KEY, small_cluster


def _node(name: str, zone: str | None) -> Json:
    return {"metadata": {"name": name, "labels": {} if zone is None else {ZONE: zone}}}


def test_a_consumer_is_in_the_zone_of_its_pods_node() -> None:
    """Law: a consumer's zone is that of its pod's node, found by the address; other clients have none."""
    zones = Zones({"10.0.0.1:5": "one", "10.0.0.2:5": "two"}.get)  # type: ignore[arg-type]  # only known addresses are asked
    zones.node_shown(_node("one", "west"), gone=False)
    zones.node_shown(_node("two", None), gone=False)

    assert [zones.of_address(f"10.0.0.{number}:5") for number in (1, 2)] == ["west", ""]


def test_a_node_that_is_gone_or_loses_its_label_is_in_no_zone() -> None:
    """Law: a node that is gone or lost its label is in no zone."""
    zones = Zones(lambda _: "")
    for gone, zone in ((True, "west"), (False, None)):
        zones.node_shown(_node("one", "west"), gone=False)
        zones.node_shown(_node("one", zone), gone=gone)

        assert zones.of_node("one") == ""


def test_a_node_that_was_never_shown_is_no_node_without_a_zone() -> None:
    """Law: a node that was never shown is unknown, not without a zone, so leaders are not balanced yet."""
    zones = Zones(lambda _: "")
    assert zones.label("one", ZONE) is None

    zones.node_shown(_node("one", None), gone=False)

    assert zones.label("one", ZONE) == ""


@pytest.mark.parametrize(("zone", "domains"), [(None, ()), ("", ("", "worker"))])
async def test_the_place_of_a_replica_is_known_when_its_node_is(
    monkeypatch: pytest.MonkeyPatch, zone: str | None, domains: tuple[str, ...]
) -> None:
    """Law: a replica's place is known only if its node is, and no leader moves before."""
    async with small_cluster(monkeypatch.setattr, label_of=lambda node, key: zone) as small:
        for _ in range(2):
            await small.reconciler.reconcile(KEY)
        seen = small.reconciler.seen.get(KEY)

    assert seen is not None
    assert seen.observed is not None
    assert seen.observed.groups["demo-0"].replicas[1].domains == domains
