"""Jobs of backups: no rights, limited attempts, credentials by name, and the Cluster's own access."""

from typing import Any

import pytest

from orderlymq_backup.command import create_command
from orderlymq_backup.storage import GROUP_ACCESS
from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.backups.job import (
    ToolEnvironment,
    creation_job,
    creation_name,
    deletion_job,
    deletion_name,
    lookup_job,
)
from orderlymq_operator.kube.objects.clientaccess import access_variables
from orderlymq_operator.kube.resources import Json
from orderlymq_operator.resources.backups.backup import Backup
from orderlymq_operator.resources.backups.destination import Destination
from orderlymq_operator.resources.meta import ObjectMeta
from tests.operator.kube.samples import IMAGE, NAMESPACE, cluster

ID = "20260101T000000000Z-00000000"
GROUPS = ["demo-0", "demo-1"]
CLAIM: Json = {"pvc": {"claimName": "backups", "path": "demo"}}
BUCKET: Json = {
    "objectStore": {
        "url": "s3://shop/demo",
        "endpoint": "http://store:9000",
        "region": "eu-central-1",
        "credentialsSecretRef": {"name": "bucket"},
    }
}


def backup(**spec: Any) -> Backup:
    return Backup.model_validate(
        {
            "apiVersion": "orderlymq.io/v1alpha1",
            "kind": "Backup",
            "metadata": {"name": "monday", "namespace": NAMESPACE, "uid": "u1"},
            "spec": {"clusterRef": {"name": "demo"}, "destination": CLAIM, **spec},
        }
    )


def made(job: Json) -> tuple[Json, Json]:
    """Return the pod of a Job and its container."""
    pod: Json = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    return pod, container


def variables(container: Json) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}


def test_a_job_has_no_rights_and_ends() -> None:
    """Law: a Job has no token, no root and no writable place but its volumes, and ends after some attempts or a day."""
    shop = cluster()
    environment = ToolEnvironment(IMAGE, "IfNotPresent", shop)
    destination = Destination.model_validate(BUCKET)
    for job in (
        creation_job(backup(), shop, GROUPS, environment),
        deletion_job(backup(), ID, environment),
        lookup_job(shop, destination, None, environment),
    ):
        pod, container = made(job)
        assert pod["automountServiceAccountToken"] is False
        assert pod["restartPolicy"] == "Never"
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["terminationMessagePath"] == names.TERMINATION_LOG
        assert container["command"][-2:] == ["--report", names.TERMINATION_LOG]
        assert 0 < job["spec"]["backoffLimit"] < 10
        assert job["spec"]["activeDeadlineSeconds"] <= 24 * 3600
        assert job["spec"]["podReplacementPolicy"] == "Failed"
        assert len(job["metadata"]["name"]) <= 63


def test_a_job_that_fills_the_disk_of_its_node_ends() -> None:
    """Law: a Job that fills its node's disk is evicted, as in a drain;
    so evictions count as failures where it writes there.
    """
    shop = cluster()
    around = ToolEnvironment(IMAGE, "IfNotPresent", shop)

    def counts(job: Json) -> bool:
        rules = job["spec"]["podFailurePolicy"]["rules"]
        return not any("onPodConditions" in rule for rule in rules)

    assert counts(creation_job(backup(), shop, GROUPS, around))
    assert not counts(creation_job(backup(verify=False), shop, GROUPS, around))
    assert not counts(creation_job(backup(scratch={"size": "9Gi"}), shop, GROUPS, around))
    assert not counts(deletion_job(backup(), ID, around))


def test_a_backup_may_take_as_long_as_it_says() -> None:
    """Law: a Backup's Job may run as long as its spec says; a deletion ends within a day."""
    environment = ToolEnvironment(IMAGE, "IfNotPresent", cluster())
    large = backup(deadline="60h")
    jobs = (
        creation_job(large, cluster(), GROUPS, environment),
        deletion_job(large, ID, environment),
    )

    assert [job["spec"]["activeDeadlineSeconds"] for job in jobs] == [60 * 3600, 24 * 3600]


def test_the_longest_deadline_is_one_that_the_job_controller_can_count() -> None:
    """Law: the longest deadline fits into 64-bit nanoseconds, in which the Job controller counts."""
    endless = backup(deadline="9999999h")
    made = creation_job(endless, cluster(), GROUPS, ToolEnvironment(IMAGE, "IfNotPresent"))

    assert 60 * 365 * 86_400 < made["spec"]["activeDeadlineSeconds"] < 2**63 / 10**9


def test_jobs_of_two_backups_have_two_names() -> None:
    """Law: Jobs of two Backups have different names, also if the Backups had the same name."""
    name, uid = "n" * 53, "6f1ed0c4-2f0a-4a7e-9d8c-000000000001"
    every = [
        backup().model_copy(update={"metadata": ObjectMeta(name=name, namespace="shop", uid=each)})
        for each in (uid, uid.replace("6", "7"))
    ]
    found = {job(each) for each in every for job in (creation_name, deletion_name)}

    assert len(found) == 4
    assert {len(each) for each in found} == {63}


def test_a_claim_is_mounted_and_a_bucket_is_named() -> None:
    """Law: credentials reach the container by the name of a Secret, which the operator never reads."""
    shop = cluster()
    environment = ToolEnvironment(IMAGE, "IfNotPresent", shop)
    pod, container = made(creation_job(backup(), shop, GROUPS, environment))
    away, far = made(creation_job(backup(destination=BUCKET), shop, GROUPS, environment))
    found = variables(far)

    assert {"name": "backups", "persistentVolumeClaim": {"claimName": "backups"}} in pod["volumes"]
    assert {"name": "backups", "mountPath": "/backups"} in container["volumeMounts"]
    assert "/backups/demo" in container["command"]
    assert "backups" not in {volume["name"] for volume in away["volumes"]}
    assert found["AWS_ENDPOINT_URL"] == "http://store:9000"
    assert found["AWS_REGION"] == "eu-central-1"
    assert found["AWS_SECRET_ACCESS_KEY"] == {
        "secretKeyRef": {"name": "bucket", "key": "AWS_SECRET_ACCESS_KEY"}
    }
    assert found["AWS_SESSION_TOKEN"]["secretKeyRef"]["optional"] is True


def test_only_who_makes_a_backup_has_the_clusters_account() -> None:
    """Law: only the Job that makes a backup has the Cluster's account; others reach the store alone."""
    shop = cluster(tls={"mode": "Enforcing", "secretName": "demo-tls"})
    environment = ToolEnvironment(IMAGE, "IfNotPresent", shop)
    _, maker = made(creation_job(backup(), shop, GROUPS, environment))
    others = [
        made(deletion_job(backup(), ID, environment))[1],
        made(lookup_job(shop, Destination.model_validate(CLAIM), ID, environment))[1],
    ]

    found = variables(maker)
    assert found["ORDERLYMQ_SECRET_KEY"]["secretKeyRef"]["name"] == "demo-operator"
    assert found["ORDERLYMQ_TLS"] == "true"
    assert "tls" in {mount["name"] for mount in maker["volumeMounts"]}
    account = {each["name"] for each in access_variables(shop)}
    assert not [name for each in others for name in variables(each) if name in account]


def test_what_is_in_a_claim_is_for_its_group() -> None:
    """Law: files in a claim are readable for its group, so that pods of other users can restore and delete them."""
    shop = cluster()
    environment = ToolEnvironment(IMAGE, "IfNotPresent", shop)
    claim, bucket = (
        [
            variables(made(job)[1]).get(GROUP_ACCESS)
            for job in (
                creation_job(backup(destination=place), shop, GROUPS, environment),
                deletion_job(backup(destination=place), ID, environment),
            )
        ]
        for place in (CLAIM, BUCKET)
    )

    assert (claim, bucket) == (["true"] * 2, [None] * 2)


def test_scratch_and_verification_are_as_wanted() -> None:
    shop = cluster()
    environment = ToolEnvironment(IMAGE, "IfNotPresent", shop)
    scratch = {"size": "50Gi", "className": "fast"}
    pod, container = made(creation_job(backup(scratch=scratch), shop, GROUPS, environment))
    (work,) = [volume for volume in pod["volumes"] if volume["name"] == "work"]

    assert "--verify" in container["command"]
    spec = work["ephemeral"]["volumeClaimTemplate"]["spec"]
    assert spec["resources"]["requests"]["storage"] == "50Gi"
    assert spec["storageClassName"] == "fast"


def test_the_program_of_an_earlier_image_makes_a_backup_without_verification(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: an older image gets no option that it lacks; the present one verifies by a variable."""
    environment = ToolEnvironment(IMAGE, "IfNotPresent", cluster())
    _, plain = made(creation_job(backup(verify=False), cluster(), GROUPS, environment))
    command = plain["command"][plain["command"].index("create") + 1 :]
    monkeypatch.setenv("ORDERLYMQ_BACKUP_VERIFY", variables(plain)["ORDERLYMQ_BACKUP_VERIFY"])
    found = create_command.make_context("create", list(command)).params

    assert not [word for word in command if "verify" in word]
    assert found["verify"] is False
    assert variables(plain)["ORDERLYMQ_BACKUP_LABEL"] == "u1"


def test_a_backup_has_the_groups_that_the_operator_knows() -> None:
    """Law: a backup gets the broker groups from the operator, because name servers may not know all."""
    shop = cluster()
    environment = ToolEnvironment(IMAGE, "IfNotPresent", shop)
    command = made(creation_job(backup(), shop, GROUPS, environment))[1]["command"]

    assert command[command.index("--groups") + 1] == "demo-0,demo-1"
