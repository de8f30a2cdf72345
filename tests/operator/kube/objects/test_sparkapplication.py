"""A SparkApplication has only fields that Kubeflow's definition knows, and its pods can do the work."""

import json
import os
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.drivers import DATA
from orderlymq_operator.kube.objects.pipeline import DriverEnvironment, supporting_objects
from orderlymq_operator.kube.objects.sparkapplication import spark_application, unknown_fields
from orderlymq_operator.kube.resources import Json
from orderlymq_operator.plan.pipelines import form_of
from orderlymq_spark.specs import parse_pipeline
from tests.operator.examples import pipeline

AROUND = DriverEnvironment("orderlymq-spark:1", "IfNotPresent")
SECRET = {"name": "SECRET", "secret": {"name": "account", "key": "secretKey"}}
SPECS: list[dict[str, Any]] = [
    {},
    {"trigger": "10s", "suspend": True},
    {
        "trigger": "10s",
        "imagePullSecrets": ["registry"],
        "env": [SECRET],
        "executors": {"instances": 4, "memory": "2g", "cores": 2},
        "spark": {"memory": "2g", "settings": {"spark.executor.memory": "3g", "spark.x": "y"}},
        "placement": {"nodeSelector": {"disk": "fast"}},
    },
]
KINDS = {"string": str, "integer": int, "boolean": bool, "array": list, "object": dict}


def application(**spec: Any) -> Json:
    return spark_application(pipeline(backend="sparkApplication", **spec), AROUND)


def definitions() -> list[Json]:
    """Return the part of Kubeflow's definition that is known here, and the whole of it if it is installed."""
    paths = [Path(__file__).parent / "sparkapplications.yaml"]
    if "ORDERLYMQ_SPARK_DEFINITION" in os.environ:
        paths.append(Path(os.environ["ORDERLYMQ_SPARK_DEFINITION"]))
    return [yaml.load(path.read_text(), yaml.CSafeLoader) for path in paths]


def schema_of(definition: Json) -> Json:
    (found,) = [each for each in definition["spec"]["versions"] if each["name"] == "v1beta2"]
    schema: Json = found["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return schema


def wrong_values(schema: Json, value: Any, path: str = "spec") -> list[str]:
    """Return where a value has a wrong type, is not allowed, or is missing."""
    kind = KINDS[schema["type"]]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        return [f"{path}: {value!r} is no {schema['type']}"]
    if value not in schema.get("enum", [value]):
        return [f"{path}: {value!r} is none of {schema['enum']}"]
    found: list[str] = []
    if isinstance(value, list):
        for each in value:
            found += wrong_values(schema["items"], each, path)
    elif isinstance(value, dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        found += [f"{path}.{name}" for name in schema.get("required", []) if name not in value]
        for name, inner in value.items():
            known = schema.get("properties", {}).get(name) or schema["additionalProperties"]
            found += wrong_values(known, inner, f"{path}.{name}")
    return found


@pytest.mark.parametrize("spec", SPECS)
def test_kubeflows_definition_knows_every_field_and_its_kind(spec: dict[str, Any]) -> None:
    """Law: every field is known with its type; the API server would drop an unknown one silently."""
    made = application(**spec)

    for definition in definitions():
        assert unknown_fields(definition, made) == []
        assert wrong_values(schema_of(definition), made["spec"]) == []


def test_what_a_definition_does_not_know_is_named() -> None:
    """Law: fields that an older definition (Kubeflow's operator before 2.4) does not know are named."""
    (known, *_) = definitions()
    old = deepcopy(known)
    del schema_of(old)["properties"]["suspend"]
    del schema_of(old)["properties"]["executor"]["properties"]["template"]
    other = deepcopy(known)
    other["spec"]["versions"][0]["name"] = "v1"

    assert unknown_fields(old, application()) == ["spec.executor.template", "spec.suspend"]
    assert unknown_fields(other, application()) == ["sparkoperator.k8s.io/v1beta2"]
    assert unknown_fields({}, application()) == ["sparkoperator.k8s.io/v1beta2"]


@pytest.mark.parametrize("spec", SPECS)
def test_nothing_empty_is_written(spec: dict[str, Any]) -> None:
    """Law: no empty field is written, because a webhook would remove it and the operator would write it for ever."""

    def empty(value: Any) -> bool:
        if isinstance(value, dict | list):
            inner = value.values() if isinstance(value, dict) else value
            return not value or any(map(empty, inner))
        return value is None

    made = application(**spec)["spec"]
    for part in ("driver", "executor"):
        for volume in made[part]["template"]["spec"]["volumes"]:
            assert volume.pop("emptyDir") == {}  # All its settings are defaults.

    assert not empty(made)


def test_the_pods_can_write_where_they_must_and_relative_paths_mean_the_same() -> None:
    """Law: /tmp is a volume and the working directory is the claim, because the root file system is read-only."""
    made = application(**SPECS[-1])["spec"]
    for part, container in (
        ("driver", "spark-kubernetes-driver"),
        ("executor", "spark-kubernetes-executor"),
    ):
        pod = made[part]["template"]["spec"]
        (inner,) = pod["containers"]

        assert (inner["name"], inner["workingDir"]) == (container, DATA)
        assert inner["volumeMounts"] == [{"name": "tmp", "mountPath": "/tmp"}]
        assert pod["volumes"] == [{"name": "tmp", "emptyDir": {}}]
        assert inner["securityContext"]["readOnlyRootFilesystem"]
        assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsUser"]
        assert inner["env"][0]["valueFrom"]["secretKeyRef"]["name"] == "account"
        assert pod["nodeSelector"] == {"disk": "fast"}
        volume = f"spark.kubernetes.{part}.volumes.persistentVolumeClaim.data"
        assert made["sparkConf"][f"{volume}.options.claimName"] == "orders-archive-pipeline"
        assert made["sparkConf"][f"{volume}.mount.path"] == DATA


def test_the_driver_has_the_token_by_which_it_makes_executors() -> None:
    """Law: the driver has its account's token, which makes executors; an executor has none."""
    made = application()["spec"]
    (account, *_) = supporting_objects(pipeline(backend="sparkApplication"), AROUND)

    assert account["automountServiceAccountToken"] is False
    assert made["driver"]["serviceAccount"] == account["metadata"]["name"]
    assert made["driver"]["template"]["spec"]["automountServiceAccountToken"] is True
    assert made["executor"]["template"]["spec"]["automountServiceAccountToken"] is False


def test_pods_that_get_the_labels_are_known_as_those_of_a_spark_application() -> None:
    """Law: pods with the SparkApplication's labels are not waited for as pods of another form."""
    assert application()["metadata"]["labels"][names.LABEL_FORM] == "SparkApplication"


def test_a_spark_application_needs_nothing_of_us_in_the_cluster() -> None:
    """Law: it needs no ConfigMap or webhook of ours: the manifest is an argument, the volume a Spark setting."""
    wanted = pipeline(backend="sparkApplication", executors={"instances": 4}, trigger="10s")
    assert form_of(wanted.spec) == "SparkApplication"

    found = spark_application(wanted, AROUND)

    spec = found["spec"]
    assert [item["kind"] for item in supporting_objects(wanted, AROUND)] == [
        *("ServiceAccount", "Role", "RoleBinding", "PersistentVolumeClaim")
    ]
    assert (found["apiVersion"], spec["mode"]) == ("sparkoperator.k8s.io/v1beta2", "cluster")
    assert (spec["restartPolicy"]["type"], spec["executor"]["instances"]) == ("Always", 4)
    assert spec["arguments"][2:] == [
        *("--directory", DATA),
        *("--http-port", str(names.HTTP_PORT)),
        *("--termination-log", names.TERMINATION_LOG),
    ]
    parsed = parse_pipeline(json.loads(spec["arguments"][1]))
    assert (parsed.name, parsed.spec.spark.master) == ("orders-archive", "")
