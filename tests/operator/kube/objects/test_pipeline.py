"""The objects of a Pipeline: the API server accepts them, and a driver can run with them."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.drivers import DATA, executor_pod
from orderlymq_operator.kube.objects.pipeline import (
    DriverEnvironment,
    labels,
    manifest,
    pipeline_workload,
    supporting_objects,
    work_of,
)
from orderlymq_operator.kube.objects.sparkapplication import spark_application
from orderlymq_operator.kube.resources import Json, resource_of
from orderlymq_operator.resources.kinds import Pipeline
from orderlymq_spark.specs import ReplaySpec, parse_pipeline, read_pipeline
from tests.operator.examples import pipeline

AROUND = DriverEnvironment("orderlymq-spark:1", "IfNotPresent")
KINDS: list[dict[str, Any]] = [
    {},
    {"trigger": "5s"},
    {"schedule": "0 3 * * *"},
    {"trigger": "5s", "backend": "kubernetes"},
]


def everything(made: Pipeline) -> list[Json]:
    return [*supporting_objects(made, AROUND), pipeline_workload(made, AROUND)]


def pod_of(made: Pipeline) -> Json:
    spec: Json = pipeline_workload(made, AROUND)["spec"]
    if "jobTemplate" in spec:
        spec = spec["jobTemplate"]["spec"]
    found: Json = spec["template"]
    return found


def told(made: Pipeline) -> Json:
    """Return the manifest that the driver reads."""
    return manifest(made, AROUND)


@pytest.mark.parametrize("spec", KINDS)
def test_everything_is_found_by_its_label_and_goes_with_the_pipeline(spec: dict[str, Any]) -> None:
    """Law: all objects have the Pipeline's label and owner, except the volume, which must survive a mistake."""
    for made in everything(pipeline(**spec)):
        meta = made["metadata"]
        assert resource_of(made).kind == made["kind"]
        assert meta["namespace"] == "shop"
        assert meta["labels"][names.LABEL_PIPELINE] == "orders-archive"
        assert names.LABEL_CLUSTER not in meta["labels"]
        assert len(meta["name"]) <= 63
        owners = [owner["uid"] for owner in meta["ownerReferences"]]
        assert owners == ([] if made["kind"] == "PersistentVolumeClaim" else ["uid-orders-archive"])


def test_a_volume_goes_with_its_pipeline_only_where_that_is_said() -> None:
    """Law: the volume has an owner only with deletionPolicy Delete; a claim given by name is not touched."""

    def claims(**storage: Any) -> list[Json]:
        made = supporting_objects(pipeline(storage=storage), AROUND)
        return [item for item in made if item["kind"] == "PersistentVolumeClaim"]

    (deleted,) = claims(deleteClaim="Delete", size="2Gi", className="fast")
    assert [owner["kind"] for owner in deleted["metadata"]["ownerReferences"]] == ["Pipeline"]
    assert deleted["spec"] == {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "2Gi"}},
        "storageClassName": "fast",
    }
    assert claims(claimName="shared") == []
    pod = pod_of(pipeline(storage={"claimName": "shared"}))
    assert {"name": "data", "persistentVolumeClaim": {"claimName": "shared"}} in pod["spec"][
        "volumes"
    ]


@pytest.mark.parametrize("spec", KINDS)
def test_what_the_driver_reads_is_a_manifest_that_a_laptop_runs_as_well(
    spec: dict[str, Any],
) -> None:
    """Law: the driver's manifest also runs on a laptop: fields for Kubernetes are removed,
    and the name servers are filled in.
    """
    made = pipeline(**spec)
    (settings,) = [item for item in everything(made) if item["kind"] == "ConfigMap"]
    text = settings["data"]["pipeline.json"]

    found = parse_pipeline(json.loads(text))

    assert found.name == "orders-archive"
    source = found.spec.source  # type: ignore[attr-defined]  # an archive has one
    assert source.bootstrap == "demo-nameserver.shop.svc:9876"


def test_an_address_that_is_given_is_kept() -> None:
    """Law: an address given in the manifest is kept; clusterRef only fills in a missing one."""
    given = pipeline(source={"topic": "orders", "bootstrap": "10.0.0.1:9876"})
    lag = pipeline(
        type="lag", source=None, checkpoint=None, path=None, topic="orders", groups=["billing"]
    )

    assert told(given)["spec"]["source"]["bootstrap"] == "10.0.0.1:9876"
    assert told(lag)["spec"]["bootstrap"] == "demo-nameserver.shop.svc:9876"


@pytest.mark.parametrize("spec", KINDS)
def test_no_pod_is_root_or_writes_to_its_root_file_system(spec: dict[str, Any]) -> None:
    """Law: driver and executors fit the restricted profile."""
    made = pipeline(**spec)
    for pod in (pod_of(made), executor_pod(made, labels(made))):
        assert pod["spec"]["securityContext"]["runAsNonRoot"]
        (container,) = pod["spec"]["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


@pytest.mark.parametrize("backend", ["pod", "kubernetes", "sparkApplication"])
@pytest.mark.parametrize(
    ("given", "user"),
    [
        ({}, {"runAsUser": 10001, "runAsGroup": 10001, "fsGroup": 10001}),
        ({"securityContext": {}}, {}),
        ({"securityContext": {"runAsUser": 1000720000}}, {"runAsUser": 1000720000}),
    ],
)
def test_the_user_may_be_left_to_the_clusters_admission(
    backend: str, given: dict[str, Any], user: dict[str, Any]
) -> None:
    """Law: runAsUser may be left to admission, as OpenShift needs."""
    wanted = pipeline(backend=backend, **given)
    if backend == "sparkApplication":
        spec = spark_application(wanted, AROUND)["spec"]
        pods = [spec["driver"]["template"]["spec"], spec["executor"]["template"]["spec"]]
    else:
        job = pipeline_workload(wanted, AROUND)["spec"]
        pods = [job["template"]["spec"], executor_pod(wanted, {})["spec"]]

    for pod in pods:
        found = dict(pod["securityContext"])
        assert found.pop("fsGroupChangePolicy") == ("Always" if given else "OnRootMismatch")
        profile = {"type": "RuntimeDefault"}
        assert found == {"runAsNonRoot": True, "seccompProfile": profile, **user}


def test_only_a_driver_that_makes_executors_has_rights() -> None:
    """Law: only a driver with executors has a token, and rights on pods and their objects in its namespace."""
    alone, many = pipeline(trigger="5s"), pipeline(trigger="5s", backend="kubernetes")

    assert [item["kind"] for item in everything(alone)] == [
        *("ServiceAccount", "Service", "ConfigMap", "PersistentVolumeClaim", "StatefulSet")
    ]
    assert pod_of(alone)["spec"]["automountServiceAccountToken"] is False
    (role,) = [item for item in everything(many) if item["kind"] == "Role"]
    assert role["rules"][0]["resources"] == [
        *("pods", "services", "configmaps", "persistentvolumeclaims")
    ]
    assert pod_of(many)["spec"]["automountServiceAccountToken"] is True


def test_a_job_gives_up_immediately_where_another_try_would_only_repeat() -> None:
    """Law: exit codes for a bad manifest and for audit findings end a Job without retries."""
    spec = pipeline_workload(pipeline(), AROUND)["spec"]

    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    # There is no rule for evictions, because that of a pod that fills its node looks like that of a drained one.
    (rule,) = spec["podFailurePolicy"]["rules"]
    assert rule["onExitCodes"] == {
        "containerName": "driver",
        "operator": "In",
        "values": [2, 3],
    }


def test_the_name_of_a_job_is_that_of_its_work() -> None:
    """Law: a Job's name follows from its work, because Jobs cannot change."""
    one = pipeline_workload(pipeline(), AROUND)["metadata"]["name"]
    same = pipeline_workload(pipeline(image="other:1"), AROUND)["metadata"]["name"]
    other = pipeline_workload(pipeline(codec="snappy"), AROUND)["metadata"]["name"]
    longest = pipeline_workload(pipeline("p" * 40), AROUND)["metadata"]["name"]

    assert one == same == f"orders-archive-pipeline-{work_of(pipeline())}"
    assert other != one
    assert len(longest) <= 63


@pytest.mark.parametrize(
    ("spec", "master"),
    [
        ({}, "local[2]"),
        ({"resources": {"limits": {"cpu": "3500m"}}}, "local[4]"),
        ({"resources": {"requests": {"cpu": "8"}}}, "local[8]"),
        ({"spark": {"master": "local-cluster[2,1,1024]"}}, "local-cluster[2,1,1024]"),
        ({"backend": "kubernetes"}, "k8s://https://kubernetes.default.svc"),
        ({"backend": "sparkApplication"}, ""),
    ],
)
def test_the_backend_decides_where_spark_runs(spec: dict[str, Any], master: str) -> None:
    """Law: the backend sets Spark's master; in one pod there are as many threads as CPUs, at least two."""
    assert told(pipeline(**spec))["spec"]["spark"]["master"] == master


def test_executors_see_the_volume_and_begin_where_the_driver_does() -> None:
    """Law: executors mount the volume and use the driver's working directory; the user's Spark settings win."""
    made = pipeline(
        backend="kubernetes",
        executors={"instances": 3, "memory": "2g"},
        spark={"settings": {"spark.executor.memory": "3g"}},
        env=[{"name": "SECRET", "secret": {"name": "account", "key": "secretKey"}}],
    )
    found = told(made)["spec"]["spark"]["settings"]
    (settings,) = [item for item in everything(made) if item["kind"] == "ConfigMap"]
    form = yaml.safe_load(settings["data"]["executor.yaml"])
    (container,) = form["spec"]["containers"]

    assert (found["spark.executor.instances"], found["spark.executor.memory"]) == ("3", "3g")
    volume = "spark.kubernetes.executor.volumes.persistentVolumeClaim.data"
    assert found[f"{volume}.options.claimName"] == "orders-archive-pipeline"
    assert found[f"{volume}.mount.path"] == container["workingDir"] == DATA
    assert pod_of(made)["spec"]["containers"][0]["workingDir"] == DATA
    assert [each["name"] for each in container["env"]] == ["SECRET"]
    assert names.LABEL_PIPELINE not in form["metadata"]["labels"]


def test_a_pause_is_no_change_of_the_pod() -> None:
    """Law: suspending and resuming do not change the pod."""
    for spec in KINDS:
        assert pod_of(pipeline(**spec)) == pod_of(pipeline(**spec, suspend=True))
        assert work_of(pipeline(**spec)) == work_of(pipeline(**spec, suspend=True))


@pytest.mark.parametrize("key", ["shop-\U0001f600", "a\x7fb", "Köln", 'a"\\b'])
def test_the_driver_reads_what_was_said(tmp_path: Path, key: str) -> None:
    """Law: the driver reads every character of the manifest, also those that JSON escapes in two parts."""
    made = pipeline(type="replay", path=None, target="copy", keys=[key])
    (settings,) = (each for each in everything(made) if each["kind"] == "ConfigMap")
    path = tmp_path / "pipeline.json"
    path.write_text(settings["data"]["pipeline.json"])

    found = read_pipeline(path).spec

    assert isinstance(found, ReplaySpec)
    assert list(found.keys or ()) == [key]
