from typing import Any

import pytest

from orderlymq_operator.brokers.status import ReplicaStatus
from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.observe.cluster import Live
from orderlymq_operator.kube.observe.pods import pod_facts
from orderlymq_operator.kube.reconcile.status import (
    Findings,
    account_facts,
    cluster_conditions,
    cluster_facts,
    previous_conditions,
    status_object,
    step_of,
)
from orderlymq_operator.kube.resources import Json
from orderlymq_operator.plan.actions import (
    ConditionReport,
    Observed,
    ObservedGroup,
    ObservedReplica,
    RestartReplica,
    Subject,
    UserConfig,
)
from orderlymq_operator.resources.conditions import table as conditions
from orderlymq_operator.resources.kinds import User
from tests.operator.kube.samples import IMAGE, cluster, environment, item, pod

NOW = "2026-01-01T10:00:00Z"
LATER = "2026-01-01T11:00:00Z"
READY = ConditionReport("True", "Synced", "effective in every raft group")
WAITS = ConditionReport("False", "BrokerUnavailable", "demo-0 does not answer")


def _written(reports: dict[str, ConditionReport], former: Json, now: str) -> Json | None:
    made = status_object(
        item("Topic", "orders", status=former), reports, {"topicName": "orders"}, now
    )
    return None if made is None else made["status"]


def test_a_status_is_written_once() -> None:
    """Law: a status that is already there is not written again, whatever the time is."""
    first = _written({"Ready": READY}, {}, NOW)
    assert first is not None

    assert _written({"Ready": READY}, first, LATER) is None
    # The API server fills defaults in.
    assert _written({"Ready": READY}, {**first, "members": [], "locks": {"held": 0}}, LATER) is None


def test_a_condition_keeps_its_time_until_its_status_changes() -> None:
    """Law: a condition's transition time changes only with its status, not with its message."""
    first = _written({"Ready": WAITS}, {}, NOW)
    assert first is not None
    other = ConditionReport("False", "BrokerUnavailable", "demo-1 does not answer")

    second = _written({"Ready": other}, first, LATER)
    assert second is not None
    third = _written({"Ready": READY}, second, LATER)
    assert third is not None

    assert second["conditions"][0]["lastTransitionTime"] == NOW
    assert third["conditions"][0]["lastTransitionTime"] == LATER


def test_a_condition_that_is_only_kept_stays_one_of_its_generation() -> None:
    """Law: a condition that is only kept has its old generation; who waits for the new spec must not get an old truth."""
    quiet = ConditionReport("False", "NotBlocked", "no group is being removed")
    made = status_object(
        item("Cluster", "demo", generation=1), {"Ready": READY, "ScaleDownBlocked": quiet}, {}, NOW
    )
    assert made is not None

    edited = item("Cluster", "demo", generation=2, status=made["status"])
    kept = {**previous_conditions(edited), "Ready": WAITS}
    now = status_object(edited, kept, {}, LATER)

    assert now is not None
    told = {each["type"]: each["observedGeneration"] for each in now["status"]["conditions"]}
    assert told == {"Ready": 2, "ScaleDownBlocked": 1}


def test_a_reason_that_is_in_no_table_is_a_mistake() -> None:
    """Law: a reason that is not in the table is a mistake in the code, because the docs would not explain it."""
    with pytest.raises(AssertionError, match="Because"):
        _written({"Ready": ConditionReport("False", "Because", "")}, {}, NOW)


def _world(**replica: Any) -> tuple[Observed, Live]:
    fit = {"running": True, "healthy": True, "caught_up": True, **replica}
    replicas = {node: ObservedReplica("voter", **fit) for node in (1, 2, 3)}
    live = Live()
    for node in (1, 2, 3):
        made = pod(f"demo-0-{node - 1}")
        made["metadata"]["labels"] = {"orderlymq.io/group": "0"}
        live.pods[f"demo-0-{node - 1}"] = pod_facts(made)
    live.statuses["demo-0-0"] = ReplicaStatus("leader", 7, 1, {}, frozenset({1, 2, 3}))
    return Observed(groups={"demo-0": ObservedGroup(1, replicas, {}, {})}), live


def _conditions(
    observed: Observed, live: Live, found: Findings, ready: ConditionReport
) -> dict[str, ConditionReport]:
    made = cluster()
    return cluster_conditions(
        made, {Subject("Cluster", "demo"): ready}, observed, live, found, environment(made)
    )


WELL = ConditionReport("True", "Ready", "every group has a leader and all its replicas")


def test_a_calm_cluster_says_so_in_every_condition() -> None:
    """Law: in a calm Cluster the conditions that are good when True are True, and the others False."""
    observed, live = _world()

    found = _conditions(observed, live, Findings(), WELL)

    assert {kind: report.status for kind, report in found.items()} == {
        "Ready": "True",
        "Available": "True",
        "QuorumHealthy": "True",
        "Progressing": "False",
        "StorageReady": "True",
        "UpdateAvailable": "False",
        "FaultTolerant": "Unknown",
        "ListenersReady": "True",
        "CertificatesCurrent": "True",
        "CapacitySufficient": "True",
        "ScaleDownBlocked": "False",
        "Confirmed": "True",
        "Paused": "False",
    }
    assert all(report.reason in conditions.BY_NAME for report in found.values())


def test_a_pause_names_the_pods_that_wait_and_nobody_says_that_they_run_what_they_do_not() -> None:
    """Law: a pause names the waiting pods, and UpdateAvailable names the image that really runs."""
    observed, live = _world()
    current = environment(cluster()).revision
    for name, image, revision in (("demo-0-0", IMAGE, current), ("demo-0-1", "old:1", "before")):
        made = pod(name)
        made["metadata"]["labels"] = {"orderlymq.io/group": "0"}
        made["metadata"]["annotations"] = {names.ANNOTATION_REVISION: revision}
        made["spec"]["containers"] = [
            {"name": "log", "image": "x"},
            {"name": "broker", "image": image},
        ]
        live.pods[name] = pod_facts(made)
    del live.pods["demo-0-2"]

    found = _conditions(observed, live, Findings(paused=True), WELL)

    assert found["Paused"].message == "no pods are restarted; these wait: demo-0-1"
    assert found["UpdateAvailable"].message == f"pods run old:1, {IMAGE}; new ones get {IMAGE}"
    del live.pods["demo-0-1"]
    found = _conditions(observed, live, Findings(paused=True), WELL)
    assert found["Paused"].message == "no pods are restarted"
    assert found["UpdateAvailable"].message == f"pods run {IMAGE}"


def test_trouble_that_a_person_must_end_is_what_ready_says() -> None:
    """Law: Ready names trouble that a person must end (a missing image), before its result (a missing replica)."""
    observed, live = _world()
    bad = pod("demo-0-2")
    bad["status"]["containerStatuses"] = [
        {
            "name": "broker",
            "image": "orderlymq:none",
            "state": {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}},
        }
    ]
    live.pods["demo-0-2"] = pod_facts(bad)

    ready = _conditions(observed, live, Findings(), WELL)["Ready"]

    assert (ready.status, ready.reason) == ("False", "ImageUnavailable")
    assert "orderlymq:none" in ready.message
    assert "demo-0-2" in ready.message


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0/4 nodes are available: 4 Insufficient memory.", "Unschedulable"),
        ("pod has unbound immediate PersistentVolumeClaims", "VolumePending"),
        ('storageclass.storage.k8s.io "fast" not found', "VolumePending"),
    ],
)
def test_a_pod_that_no_node_takes_says_whether_room_or_a_volume_is_missing(
    text: str, reason: str
) -> None:
    """Law: a pod that cannot be scheduled says whether room or a volume is missing, with the scheduler's own sentence."""
    made = pod(conditions=[{"type": "PodScheduled", "status": "False", "message": text}])

    trouble = pod_facts(made).trouble

    assert trouble is not None
    assert (trouble.reason, text in trouble.text) == (reason, True)


def test_facts_leave_out_what_is_not_known() -> None:
    """Law: unknown facts are left out, because the schema refuses null."""
    _, live = _world()
    made = cluster()
    headless = Observed(groups={"demo-0": ObservedGroup(None, {})})
    live.statuses.clear()

    facts = cluster_facts(
        item("Cluster", "demo"), made, headless, live, environment(made), Findings(), NOW
    )

    assert facts["leaders"] == "0/1"
    assert facts["groups"] == [{"name": "demo-0", "replicas": 0, "members": [], "draining": False}]
    assert "None" not in str(facts)


def test_an_operation_keeps_its_beginning() -> None:
    """Law: an operation keeps its start time while its steps change."""
    observed, live = _world()
    made = cluster()
    found = Findings(step=step_of([RestartReplica("demo-0", 2)], 0))
    former = {"operation": {"type": "RollingUpdate", "step": "another", "startedAt": NOW}}

    facts = cluster_facts(
        item("Cluster", "demo", status=former),
        made,
        observed,
        live,
        environment(made),
        found,
        LATER,
    )

    assert facts["operation"] == {
        "type": "RollingUpdate",
        "step": "replacing replica 2 of demo-0",
        "startedAt": NOW,
    }


def test_the_status_of_an_account_says_until_when_a_former_secret_is_valid() -> None:
    """Law: a User's status has the latest time at which any broker accepts the former secret;
    a time out of range fails nothing.
    """
    made = item("User", "shop-app").manifest
    assert isinstance(made, User)

    def facts(*until_ms: int) -> Json:
        groups = {
            f"demo-{number}": ObservedGroup(
                None,
                {},
                users={
                    "shop-app": UserConfig(
                        False, "DENY", "DENY", (), (), "", "f", former_until_ms=former_ms
                    )
                },
            )
            for number, former_ms in enumerate(until_ms)
        }
        return account_facts(made, "shop-app", Observed(groups=groups))

    secret = {"secretName": "shop-app-user"}
    assert facts() == facts(0, 0) == secret
    assert facts(1_700_000_000_000, 1_700_000_060_000, 0) == {
        **secret,
        "formerSecretUntil": "2023-11-14T22:14:20Z",
    }
    assert facts(2**63)["formerSecretUntil"] == "9999-12-31T23:59:59Z"
