"""Manifests together: what they make of the present state of a cluster."""

from dataclasses import replace

import pytest

from orderlymq_operator.resources.manifests.combination import OtherClusterError, combine
from orderlymq_operator.resources.manifests.problems import ManifestError
from orderlymq_operator.resources.manifests.reader import Manifest
from tests.operator.examples import cluster, desired, group, topic


def _manifests(*resources: object) -> list[Manifest]:
    return [Manifest(item, "my.yaml", 1) for item in resources]  # type: ignore[arg-type]  # any kind


def test_topics_need_a_cluster() -> None:
    """Law: manifests without a Cluster need a cluster that already runs."""
    with pytest.raises(ManifestError, match="no Cluster is declared"):
        combine(_manifests(topic()), None)

    assert combine(_manifests(topic()), desired()).topics == (topic(),)


def test_a_reference_to_a_missing_cluster_names_the_one_that_is_there() -> None:
    """Law: a reference to a missing Cluster names the one that exists."""
    with pytest.raises(
        ManifestError, match="there is no Cluster 'prod'; the Cluster here is 'demo'"
    ):
        combine(_manifests(cluster(), topic(clusterRef={"name": "prod"})), None)


def test_two_objects_cannot_claim_one_topic() -> None:
    """Law: two objects cannot declare the same topic name in a cluster."""
    with pytest.raises(ManifestError, match="the topic 'orders' is already declared by 'orders'"):
        combine(_manifests(cluster(), topic(), topic("other", topicName="orders")), None)


def test_a_second_cluster_is_refused() -> None:
    """Law: a data directory has one Cluster; a second one is refused."""
    with pytest.raises(ManifestError, match="can have only one Cluster"):
        combine(_manifests(cluster(), cluster("other")), None)
    with pytest.raises(OtherClusterError, match="belongs to Cluster 'demo'"):
        combine(_manifests(cluster("other")), desired())


def test_what_a_file_does_not_mention_stays() -> None:
    """Law: resources that a file does not mention stay, as with `kubectl apply`; `--prune` removes them."""
    before = desired(topic("a"), topic("b"), group())

    kept = combine(_manifests(topic("a", permission="ReadOnly")), before)
    pruned = combine(_manifests(topic("a")), before, prune=True)

    assert kept == desired(topic("a", permission="ReadOnly"), topic("b"), group())
    assert pruned == desired(topic("a"))


def test_nothing_is_no_reason_to_give_everything_up() -> None:
    """Law: `--prune` with an empty file is refused as a mistake."""
    with pytest.raises(ManifestError, match="would remove everything"):
        combine([], desired(topic("a")), prune=True)


def test_only_a_pruned_topic_with_policy_delete_is_deleted_and_remembered() -> None:
    """Law: only a pruned topic with policy Delete is deleted, and that is remembered; the default Retain keeps messages."""
    before = desired(topic("keep"), topic("drop", deletionPolicy="Delete"))

    once = combine(_manifests(before.cluster), before, prune=True)
    twice = combine([], once)
    back = combine(_manifests(topic("drop")), twice)

    assert once.deleted_topics == twice.deleted_topics == frozenset({"drop"})
    assert back.deleted_topics == frozenset()


@pytest.mark.parametrize("name", ["%DLQ%billing", "%RETRY%billing", "TBW102", "demo", "demo-0"])
def test_a_topic_of_the_brokers_own_is_not_deleted_with_a_manifest_of_its_name(name: str) -> None:
    """Law: a manifest (accepted earlier) with the name of a brokers' own topic never deletes that topic."""
    before = desired(topic("drop", topicName=name, deletionPolicy="Delete"), topic("keep"))
    about = replace(desired(topic("keep")), deleted_topics=frozenset({name}))

    for each in (before, about):
        after = combine(_manifests(each.cluster, topic("keep")), each, prune=True)

        assert after == desired(topic("keep"))
