"""
A Pipeline as Kubernetes objects: its manifest, its volume, and the workload that makes its drivers.

Pure. Rules: names and selectors never change. The volume has an owner only if it should be deleted with the Pipeline.
No process runs as root or writes to its root file system. A driver has rights in the API server only if it makes
executors. `drivers` makes the pods, `sparkapplication` the object for Kubeflow's operator.
"""

import json
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.drift import stamped
from orderlymq_operator.kube.objects.drivers import (
    ATTEMPTS,
    CONTAINER,
    driver_pod,
    executor_pod,
    spark_settings,
)
from orderlymq_operator.kube.objects.ownership import owned
from orderlymq_operator.kube.objects.rights import account_with_rights
from orderlymq_operator.kube.resources import (
    CLAIMS,
    CONFIG_MAPS,
    CRON_JOBS,
    JOBS,
    SERVICES,
    STATEFUL_SETS,
    Json,
    Resource,
)
from orderlymq_operator.plan.pipelines import Form, form_of
from orderlymq_operator.plan.settings import revision_of
from orderlymq_operator.resources.meta import API_VERSION
from orderlymq_operator.resources.pipelines.pipeline import Pipeline

MANIFEST: Final = "pipeline.json"
EXECUTOR_FORM: Final = "executor.yaml"
# Exit codes of `orderlymq_spark.driver` that another attempt would only repeat: an invalid manifest, an audit that has
# found problems.
_FINAL_CODES: Final = [2, 3]
_HISTORY: Final = 1  # runs of a CronJob that are kept, because the last run shows how it ended
# The verbs that Spark needs in the API server to make executors.
_EXECUTOR_VERBS: Final = [
    *("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
]
_WORKLOADS: Final = {"StatefulSet": STATEFUL_SETS, "Job": JOBS, "CronJob": CRON_JOBS}


@dataclass(frozen=True, slots=True)
class DriverEnvironment:
    """Additions of the operator to a Pipeline."""

    image: str
    pull_policy: str


def object_name(pipeline: Pipeline) -> str:
    """Return the name of all objects that are made for a Pipeline, except Jobs."""
    return f"{pipeline.metadata.name}-pipeline"


def claim_name(pipeline: Pipeline) -> str:
    """Return the name of the volume claim with the checkpoint."""
    return pipeline.spec.storage.claim_name or object_name(pipeline)


def labels(pipeline: Pipeline) -> dict[str, str]:
    """Return the labels by which the operator finds all objects of a Pipeline."""
    return {
        "app.kubernetes.io/name": "orderlymq",
        "app.kubernetes.io/instance": pipeline.metadata.name,
        "app.kubernetes.io/component": names.DRIVER,
        "app.kubernetes.io/managed-by": "orderlymq-operator",
        names.LABEL_PIPELINE: pipeline.metadata.name,
    }


def manifest(pipeline: Pipeline, environment: DriverEnvironment) -> Json:
    """Return the manifest that the driver reads: the user's spec, with addresses and Spark settings filled in."""
    said: Json = pipeline.spec.said()
    reference = pipeline.spec.cluster_ref
    if reference is not None:
        namespace = reference.namespace or pipeline.metadata.namespace
        address = f"{reference.name}-nameserver.{namespace}.svc:{names.NAME_SERVER_PORT}"
        if "source" in said:
            said["source"].setdefault("bootstrap", address)
        elif pipeline.spec.type in {"lag", "dead-letters", "redrive"}:
            said.setdefault("bootstrap", address)
    said["spark"] = spark_settings(
        pipeline,
        image=environment.image,
        pull_policy=environment.pull_policy,
        claim=claim_name(pipeline),
    )
    return {
        "apiVersion": API_VERSION,
        "kind": "Pipeline",
        "metadata": {"name": pipeline.metadata.name},
        "spec": said,
    }


def work_of(pipeline: Pipeline) -> str:
    """Return a text that changes when a driver gets other work; image, resources and Spark settings do not count."""
    said = pipeline.spec.said()
    said.pop("spark", None)
    reference = pipeline.spec.cluster_ref
    said["cluster"] = None if reference is None else [reference.namespace, reference.name]
    said["claim"] = claim_name(pipeline)
    return revision_of(said)


def supporting_objects(pipeline: Pipeline, environment: DriverEnvironment) -> list[Json]:
    """Return the objects that a driver needs, in the order in which they are applied."""
    found = _account_objects(pipeline)
    if form_of(pipeline.spec) != "SparkApplication":
        found += [_service(pipeline), _settings(pipeline, environment)]
    if pipeline.spec.storage.claim_name is None:
        found.append(_claim(pipeline))
    return found


def pipeline_workload(pipeline: Pipeline, environment: DriverEnvironment) -> Json:
    """Return the workload that makes the drivers in the operator's own pods: a StatefulSet, Job or CronJob."""
    form = form_of(pipeline.spec)
    assert form != "SparkApplication", "`sparkapplication` makes those"
    work = work_of(pipeline)
    text = _text(manifest(pipeline, environment))
    pod = driver_pod(
        pipeline,
        image=environment.image,
        pull_policy=environment.pull_policy,
        settings=object_name(pipeline),
        claim=claim_name(pipeline),
        labels={**labels(pipeline), names.LABEL_FORM: form},
        notes={names.ANNOTATION_WORK: work, names.ANNOTATION_REVISION: revision_of(text)},
    )
    name, resource = object_name(pipeline), _WORKLOADS[form]
    spec: Json
    if form == "StatefulSet":
        spec = {
            "replicas": 0 if pipeline.spec.suspend else 1,
            "serviceName": object_name(pipeline),
            "selector": {"matchLabels": selector(pipeline, form)},
            "template": pod,
        }
    elif form == "Job":
        name = f"{name}-{work}"
        spec = {**_job(pod), "suspend": pipeline.spec.suspend}
    else:
        spec = {
            "schedule": pipeline.spec.schedule,
            "timeZone": "UTC",
            "suspend": pipeline.spec.suspend,
            # Only one driver may use the checkpoint.
            "concurrencyPolicy": "Forbid",
            "successfulJobsHistoryLimit": _HISTORY,
            "failedJobsHistoryLimit": _HISTORY,
            # Jobs need no labels: the pods of the Jobs have labels, and they show all that matters.
            "jobTemplate": stamped({"metadata": {}, "spec": _job(pod)}),
        }
    made = owned_object(pipeline, resource, name, spec=spec)
    made["metadata"]["annotations"][names.ANNOTATION_WORK] = work
    return made


def selector(pipeline: Pipeline, form: Form) -> dict[str, str]:
    """Return the labels by which a StatefulSet and the Service select pods; they never change."""
    chosen = {**labels(pipeline), names.LABEL_FORM: form}
    return {key: value for key, value in chosen.items() if "managed-by" not in key}


def _job(pod: Json) -> Json:
    pod["spec"]["restartPolicy"] = "Never"  # a failed pod stays, and with it its report
    return {
        "backoffLimit": ATTEMPTS,
        "podFailurePolicy": {
            # Evictions count as failures: a drained node and a node that the driver has filled look the same.
            "rules": [
                {
                    "action": "FailJob",
                    "onExitCodes": {
                        "containerName": CONTAINER,
                        "operator": "In",
                        "values": _FINAL_CODES,
                    },
                },
            ]
        },
        "template": pod,
    }


def _account_objects(pipeline: Pipeline) -> list[Json]:
    """Return the account of a driver, with rights to make executors; without executors it has no rights."""
    name = object_name(pipeline)
    rule = {
        "apiGroups": [""],
        "resources": ["pods", "services", "configmaps", "persistentvolumeclaims"],
        "verbs": _EXECUTOR_VERBS,
    }
    make = partial(owned_object, pipeline, name=name)
    found = account_with_rights(make, name, pipeline.metadata.namespace, [rule])
    return found[:1] if pipeline.spec.backend == "pod" else found


def _service(pipeline: Pipeline) -> Json:
    """Return the Service that a StatefulSet must have; it also gives metric scrapers a name."""
    spec = {
        "type": "ClusterIP",
        "clusterIP": "None",
        "selector": selector(pipeline, form_of(pipeline.spec)),
        "ports": [
            {
                "name": "http",
                "port": names.HTTP_PORT,
                "targetPort": names.HTTP_PORT,
                "protocol": "TCP",
            }
        ],
    }
    return owned_object(pipeline, SERVICES, object_name(pipeline), spec=spec)


def _settings(pipeline: Pipeline, environment: DriverEnvironment) -> Json:
    data = {MANIFEST: _text(manifest(pipeline, environment))}
    if pipeline.spec.backend == "kubernetes":
        data[EXECUTOR_FORM] = _text(executor_pod(pipeline, labels(pipeline)))
    return owned_object(pipeline, CONFIG_MAPS, object_name(pipeline), data=data)


def _claim(pipeline: Pipeline) -> Json:
    storage = pipeline.spec.storage
    spec: Json = {
        "accessModes": [storage.access_mode],
        "resources": {"requests": {"storage": str(storage.size)}},
    }
    if storage.class_name is not None:
        spec["storageClassName"] = storage.class_name
    made = owned_object(pipeline, CLAIMS, object_name(pipeline), spec=spec)
    if storage.delete_claim == "Retain":
        made["metadata"]["ownerReferences"] = []
    return made


def owned_object(pipeline: Pipeline, resource: Resource, name: str, **content: Any) -> Json:
    """Return an object that the Pipeline owns."""
    return owned("Pipeline", pipeline.metadata, resource, name, labels(pipeline), **content)


def _text(value: Json) -> str:
    return json.dumps(value, indent=1, sort_keys=True)
