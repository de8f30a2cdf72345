"""
A Pipeline as a SparkApplication of Kubeflow's Spark operator, for clusters that have it.

Pure. Rules: Kubeflow's operator makes the pods, not this one. The manifest is passed as an argument and the volume by
Spark settings. Pod templates contain the rest, so that Kubeflow's webhook is not needed. Empty fields are never
written, because a webhook that rewrites the object would drop them and the operator would add them again forever. The
API server silently drops fields that Kubeflow's definition does not know: `unknown_fields` finds them.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.drivers import (
    ATTEMPTS,
    DATA,
    executor_settings,
    executor_template,
    spark_driver_pod,
)
from orderlymq_operator.kube.objects.pipeline import (
    DriverEnvironment,
    claim_name,
    manifest,
    object_name,
    owned_object,
    work_of,
)
from orderlymq_operator.kube.resources import SPARK_APPLICATIONS, Json
from orderlymq_operator.resources.pipelines.pipeline import Pipeline

# A file in the image, which calls `orderlymq_spark.driver`.
MAIN_FILE: Final = "local:///opt/orderlymq/spark/main.py"
SPARK_VERSION: Final = "4.3.0"  # the version in the image; Kubeflow's operator only shows it
# The pause before a restart, also for streams: a failed driver starts again from its checkpoint.
_RETRY_S: Final = 10


def spark_application(pipeline: Pipeline, environment: DriverEnvironment) -> Json:
    """Return the SparkApplication of a Pipeline."""
    spec = pipeline.spec
    claim = claim_name(pipeline)
    account = object_name(pipeline)
    volume = "spark.kubernetes.driver.volumes.persistentVolumeClaim.data"
    conf = {
        **executor_settings(pipeline, claim),
        f"{volume}.mount.path": DATA,
        f"{volume}.options.claimName": claim,
        **spec.spark.settings,
    }
    for managed in ("instances", "cores", "memory"):
        conf.pop(f"spark.executor.{managed}", None)
    made = owned_object(pipeline, SPARK_APPLICATIONS, account)
    made["metadata"]["annotations"][names.ANNOTATION_WORK] = work_of(pipeline)
    # Kubeflow's operator copies the labels to the pods; this label shows what made them.
    made["metadata"]["labels"][names.LABEL_FORM] = SPARK_APPLICATIONS.kind
    made["spec"] = {
        "type": "Python",
        "pythonVersion": "3",
        "mode": "cluster",
        "sparkVersion": SPARK_VERSION,
        "image": environment.image,
        "imagePullPolicy": environment.pull_policy,
        "mainApplicationFile": MAIN_FILE,
        "arguments": [
            *(
                "--manifest-json",
                json.dumps(manifest(pipeline, environment), sort_keys=True),
            ),
            *("--directory", DATA),
            *("--http-port", str(names.HTTP_PORT)),
            *("--termination-log", names.TERMINATION_LOG),
        ],
        "sparkConf": conf,
        "suspend": spec.suspend,
        "restartPolicy": {
            "type": "Always" if spec.continuous else "OnFailure",
            "onFailureRetries": ATTEMPTS,
            "onFailureRetryInterval": _RETRY_S,
            "onSubmissionFailureRetries": ATTEMPTS,
            "onSubmissionFailureRetryInterval": _RETRY_S,
        },
        "driver": {
            "cores": 1,
            "memory": spec.spark.memory,
            "serviceAccount": account,
            "template": spark_driver_pod(pipeline),
        },
        "executor": {
            "instances": spec.executors.instances,
            "cores": spec.executors.cores,
            "memory": spec.executors.memory,
            "template": executor_template(pipeline),
        },
    }
    if spec.image_pull_secrets:
        made["spec"]["imagePullSecrets"] = list(spec.image_pull_secrets)
    return made


def unknown_fields(definition: Json, made: Json) -> list[str]:
    """Return the paths of fields that an object's definition does not know; the API server silently drops them."""
    version = made["apiVersion"].rpartition("/")[2]
    for each in (definition.get("spec") or {}).get("versions") or []:
        if each["name"] == version:
            schema = (each.get("schema") or {}).get("openAPIV3Schema") or {}
            known = (schema.get("properties") or {}).get("spec") or {}
            return sorted(set(_unknown(known, made["spec"], "spec")))
    return [made["apiVersion"]]


def _unknown(schema: Json, value: Any, path: str) -> Iterator[str]:
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return
    if isinstance(value, list):
        for each in value:
            yield from _unknown(schema.get("items") or {}, each, path)
    if isinstance(value, dict):
        known, others = schema.get("properties") or {}, schema.get("additionalProperties")
        for name, inner in value.items():
            if name in known:
                yield from _unknown(known[name], inner, f"{path}.{name}")
            elif isinstance(others, dict):
                yield from _unknown(others, inner, f"{path}.{name}")
            elif not others:
                yield f"{path}.{name}"
