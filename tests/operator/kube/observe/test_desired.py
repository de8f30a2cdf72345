from typing import Any

import pytest

from orderlymq_operator.kube.objects.names import FINALIZER
from orderlymq_operator.kube.observe.desired import desired_state
from orderlymq_operator.plan.actions import ConditionReport, Subject
from orderlymq_operator.resources.kinds import is_deleted_with
from tests.operator.kube.samples import cluster, item

LEAVING: dict[str, Any] = {"deletionTimestamp": "2026-01-02T00:00:00Z", "finalizers": [FINALIZER]}
DELETE = {"deletionPolicy": "Delete"}


def test_of_two_objects_with_one_name_the_oldest_wins() -> None:
    """Law: of two objects with one name the oldest wins; the other one says so and takes over when it is gone."""
    first = item("Topic", "orders")
    second = item(
        "Topic",
        "other",
        spec={"topicName": "orders"},
        creationTimestamp="2026-01-01T00:00:05Z",
    )

    state = desired_state(cluster(), [first, second])

    assert [topic.metadata.name for topic in state.desired.topics] == ["shop/orders"]
    assert state.verdicts == {
        Subject("Topic", "shop/other"): ConditionReport(
            "False", "Conflict", "Topic shop/orders is older and declares 'orders', too"
        )
    }
    alone = desired_state(cluster(), [second])
    assert [topic.topic_name for topic in alone.desired.topics] == ["orders"]
    assert not alone.verdicts


def test_equal_names_in_two_namespaces_are_two_objects() -> None:
    """Law: equal names in two namespaces are two objects, with different topicNames."""
    mine = item("Topic", "orders")
    theirs = item("Topic", "orders", "sales", spec={"topicName": "sales-orders"})

    state = desired_state(cluster(allowedNamespaces=["sales"]), [mine, theirs])

    assert [(topic.metadata.name, topic.topic_name) for topic in state.desired.topics] == [
        ("shop/orders", "orders"),
        ("sales/orders", "sales-orders"),
    ]


def test_what_cannot_be_used_is_reported_and_hurts_nobody_else() -> None:
    """Law: an unusable object is reported with the field and does not affect others."""
    state = desired_state(
        cluster(), [item("Topic", "bad", spec={"queues": 0}), item("Topic", "good")]
    )

    (verdict,) = state.verdicts.values()
    assert (verdict.reason, "spec.queues" in verdict.message) == ("Invalid", True)
    assert len(state.desired.topics) == 1


def test_only_deletion_policy_delete_deletes() -> None:
    """Law: only deletionPolicy Delete deletes; a retained topic stays in the brokers."""
    kept = item("Topic", "kept", **LEAVING)
    gone = item("Topic", "gone", spec=DELETE, **LEAVING)

    state = desired_state(cluster(), [kept, gone])

    assert state.desired.deleted_topics == {"gone"}
    assert state.desired.topics == ()
    assert state.leaving == [kept, gone]


def test_a_name_that_another_object_has_taken_over_is_not_deleted() -> None:
    """Law: a name that another object has taken over is not deleted with the old object."""
    old = item("Topic", "old", spec={"topicName": "orders", **DELETE}, **LEAVING)
    new = item("Topic", "new", spec={"topicName": "orders", **DELETE})

    assert desired_state(cluster(), [old, new]).desired.deleted_topics == frozenset()


@pytest.mark.parametrize("kind", ["Topic", "ConsumerGroup"])
def test_what_cannot_be_used_holds_its_name(kind: str) -> None:
    """Law: an unusable object keeps its name, so that no other object gets its messages and offsets."""
    field = "topicName" if kind == "Topic" else "groupName"
    bad = item(kind, "orders", spec={"ordering": 1, "type": 1})
    spec = {field: "orders", **DELETE}
    other = item(kind, "other", spec=spec, creationTimestamp="2026-01-01T00:00:05Z")
    gone = item(kind, "other", spec=spec, creationTimestamp="2026-01-01T00:00:05Z", **LEAVING)

    state, later = desired_state(cluster(), [bad, other]), desired_state(cluster(), [bad, gone])

    reasons = [state.verdicts[Subject(kind, f"shop/{name}")].reason for name in ("orders", "other")]
    assert reasons == ["Invalid", "Conflict"]
    for found in (state.desired.topics, state.desired.consumer_groups):
        assert not found
    for left in (later.desired.deleted_topics, later.desired.deleted_consumer_groups):
        assert not left


@pytest.mark.parametrize(
    ("reason", "deleted"),
    [("Conflict", set()), ("ResourceConflict", {"gone"}), ("BrokerUnavailable", {"gone"})],
)
def test_what_another_object_declares_is_not_deleted(reason: str, deleted: set[str]) -> None:
    """Law: a refused object that was never carried out deletes nothing that another one declares."""
    told = {"conditions": [{"type": "Ready", "status": "False", "reason": reason}]}
    gone = item("Topic", "gone", spec=DELETE, status=told, **LEAVING)

    assert desired_state(cluster(), [gone]).desired.deleted_topics == deleted


@pytest.mark.parametrize(
    "name", ["%DLQ%billing", "%RETRY%billing", "TBW102", "demo", "demo-0", "demo_REPLY_TOPIC"]
)
def test_a_topic_of_the_brokers_own_is_not_deleted_with_an_object_of_its_name(name: str) -> None:
    """Law: the brokers' own topics are not deleted with an object of their name."""
    told = {"conditions": [{"type": "Ready", "status": "False", "reason": "ResourceConflict"}]}
    for status in ({}, told):
        gone = item("Topic", "gone", spec={"topicName": name, **DELETE}, status=status, **LEAVING)

        state = desired_state(cluster(), [gone])

        assert state.desired.deleted_topics == set()
        assert state.leaving == [gone]


def test_who_needs_a_finalizer() -> None:
    """Law: only objects that are deleted in the brokers have a finalizer; a Cluster never does."""
    topic = item("Topic", "a").manifest
    deleted = item("Topic", "a", spec=DELETE).manifest
    user = item("User", "somebody", spec={"secretFrom": {"secret": {"name": "s"}}}).manifest

    assert topic is not None
    assert deleted is not None
    assert user is not None
    assert not is_deleted_with(topic)
    assert is_deleted_with(deleted)
    assert is_deleted_with(user)
    assert not is_deleted_with(cluster())
