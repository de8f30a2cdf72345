"""
The pods of a Pipeline: the driver, its Spark settings, and the template of executors.

Pure. Rules: the working directory is the volume, so that a manifest with relative paths works in a pod and on a laptop.
"Alive" means that the driver's process answers. "Ready" means that it works: Spark has started, if the driver uses
Spark.
"""

import math
from collections.abc import Mapping
from decimal import Decimal
from functools import partial
from typing import Final

from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.placement import node_choice
from orderlymq_operator.kube.objects.podtemplate import (
    locked_down,
    pod_field,
    pod_user,
    probe,
    pull_secrets,
)
from orderlymq_operator.kube.resources import Json
from orderlymq_operator.resources.pipelines.pipeline import Pipeline
from orderlymq_operator.resources.pipelines.spark import SparkSettings
from orderlymq_operator.resources.quantities import quantity

CONTAINER: Final = "driver"
# The container names that Spark and Kubeflow's operator expect.
_EXECUTOR_CONTAINER: Final = "spark-kubernetes-executor"
SPARK_DRIVER_CONTAINER: Final = "spark-kubernetes-driver"
DATA: Final = "/var/lib/orderlymq"
SETTINGS: Final = "/etc/orderlymq"
# Attempts of a run that has an end. Kubernetes waits 10, 20, 40 s ... between them, about five minutes in all.
ATTEMPTS: Final = 5
# `spark.sql.streaming.stopTimeout` is a minute; after that, the driver writes its status.
_GRACE_S: Final = 90
_START_S: Final = 180  # for a JVM on a busy node; the HTTP pages are available before the JVM
_LOCAL_ANY: Final = "local[*]"
# A stream needs one thread for a task while it plans the next one.
_THREADS_MIN: Final = 2
API_SERVER: Final = "k8s://https://kubernetes.default.svc"


def driver_pod(
    pipeline: Pipeline,
    *,
    image: str,
    pull_policy: str,
    settings: str,
    claim: str,
    labels: Mapping[str, str],
    notes: Mapping[str, str],
) -> Json:
    """Return the pod template of a driver; *settings* is the ConfigMap with its manifest."""
    spec = pipeline.spec
    makes_executors = spec.backend == "kubernetes"
    driver_probe = partial(probe, scheme="HTTP", timeout_s=5)
    container: Json = {
        "name": CONTAINER,
        "image": image,
        "imagePullPolicy": pull_policy,
        "command": [
            *("python", "-m", "orderlymq_spark.driver"),
            *("--manifest", f"{SETTINGS}/pipeline.json"),
            *("--http-port", str(names.HTTP_PORT)),
            *("--termination-log", names.TERMINATION_LOG),
        ],
        "workingDir": DATA,
        "env": [
            pod_field("POD_NAME", "metadata.name"),
            pod_field("POD_IP", "status.podIP"),
            *variables(pipeline),
        ],
        "ports": [{"name": "http", "containerPort": names.HTTP_PORT, "protocol": "TCP"}],
        "resources": spec.resources.model_dump(mode="json", exclude_none=True),
        "startupProbe": driver_probe("/healthz", period_s=1, failures=_START_S),
        "livenessProbe": driver_probe("/healthz", period_s=10, failures=6),
        "readinessProbe": driver_probe("/readyz", period_s=2, failures=3),
        # A killed driver cannot report the reason, but the last lines of its log may show it.
        "terminationMessagePath": names.TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": locked_down(),
        "volumeMounts": [
            {"name": "data", "mountPath": DATA},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - of the container
            {"name": "settings", "mountPath": SETTINGS, "readOnly": True},
        ],
    }
    pod: Json = {
        "serviceAccountName": settings,
        "automountServiceAccountToken": makes_executors,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _GRACE_S,
        "securityContext": pod_user(spec.security_context),
        "containers": [container],
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": claim}},
            {"name": "tmp", "emptyDir": {}},
            {"name": "settings", "configMap": {"name": settings}},
        ],
        # A single driver needs no spreading.
        **node_choice(spec.placement),
    }
    pod |= pull_secrets(spec.image_pull_secrets)
    return {"metadata": {"labels": dict(labels), "annotations": dict(notes)}, "spec": pod}


def executor_pod(pipeline: Pipeline, labels: Mapping[str, str]) -> Json:
    """Return the pod template that Spark completes for each executor: the fields for which Spark has no settings."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "labels": {
                # Without the label by which the operator finds drivers.
                **{key: value for key, value in labels.items() if key != names.LABEL_PIPELINE},
                "app.kubernetes.io/component": names.EXECUTOR,
            }
        },
        **executor_template(pipeline),
    }


def executor_template(pipeline: Pipeline) -> Json:
    """Return the same without labels, for the spark-submit of another operator, which sets its own labels."""
    return {
        "spec": {"automountServiceAccountToken": False, **_spark_pod(pipeline, _EXECUTOR_CONTAINER)}
    }


def spark_driver_pod(pipeline: Pipeline) -> Json:
    """Return the template of a driver pod that the spark-submit of another operator makes."""
    pod = _spark_pod(pipeline, SPARK_DRIVER_CONTAINER)
    # The driver makes executors and needs a token for that; its account does not mount one by default.
    return {
        "spec": {
            "automountServiceAccountToken": True,
            "terminationGracePeriodSeconds": _GRACE_S,
            **pod,
        }
    }


def _spark_pod(pipeline: Pipeline, container: str) -> Json:
    made: Json = {
        "name": container,
        "workingDir": DATA,
        "securityContext": locked_down(),
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108 - of the container
    }
    if pipeline.spec.env:
        made["env"] = variables(pipeline)
    return {
        "enableServiceLinks": False,
        "securityContext": pod_user(pipeline.spec.security_context),
        "containers": [made],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
        **node_choice(pipeline.spec.placement),
    }


def spark_settings(pipeline: Pipeline, *, image: str, pull_policy: str, claim: str) -> Json:
    """Return `spec.spark` for the driver: the backend chooses the master, the user the rest."""
    spec = pipeline.spec
    given = spec.spark.model_dump(mode="json", by_alias=True)
    match spec.backend:
        case "pod":
            return {**given, "master": _local_master(spec.spark, pipeline)}
        case "sparkApplication":
            # spark-submit sets the master before the driver's program starts.
            return {**given, "master": ""}
    own = {
        **executor_settings(pipeline, claim),
        "spark.kubernetes.container.image": image,
        "spark.kubernetes.container.image.pullPolicy": pull_policy,
        "spark.kubernetes.executor.podTemplateFile": f"{SETTINGS}/executor.yaml",
        "spark.kubernetes.executor.podTemplateContainerName": _EXECUTOR_CONTAINER,
    }
    if spec.image_pull_secrets:
        own["spark.kubernetes.container.image.pullSecrets"] = ",".join(spec.image_pull_secrets)
    return {**given, "master": API_SERVER, "settings": {**own, **spec.spark.settings}}


def executor_settings(pipeline: Pipeline, claim: str) -> dict[str, str]:
    """Return the Spark settings for executors that mount the volume."""
    executors = pipeline.spec.executors
    volume = "spark.kubernetes.executor.volumes.persistentVolumeClaim.data"
    return {
        "spark.executor.instances": str(executors.instances),
        "spark.executor.cores": str(executors.cores),
        "spark.executor.memory": executors.memory,
        "spark.kubernetes.namespace": pipeline.metadata.namespace or "default",
        f"{volume}.mount.path": DATA,
        f"{volume}.options.claimName": claim,
    }


def variables(pipeline: Pipeline) -> list[Json]:
    """Return the variables that come from Secrets."""
    return [
        {
            "name": each.name,
            "valueFrom": {"secretKeyRef": {"name": each.secret.name, "key": each.secret.key}},
        }
        for each in pipeline.spec.env
    ]


def _local_master(given: SparkSettings, pipeline: Pipeline) -> str:
    """Return a local master with a thread per CPU of the pod; a JVM without a limit would count the node's CPUs."""
    if given.master != _LOCAL_ANY:
        return given.master
    room = pipeline.spec.resources
    cpus = [quantity(str(each.cpu)) for each in (room.limits, room.requests) if each.cpu]
    most = next((each for each in cpus if each is not None), Decimal(0))
    return f"local[{max(_THREADS_MIN, math.ceil(most))}]"
