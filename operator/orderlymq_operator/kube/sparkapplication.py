"""
A Pipeline as a SparkApplication of Kubeflow's Spark operator, for clusters that have it.

Pure. Rules: the operator writes no pods then, the other one does; the manifest travels as an argument and the volume by
Spark's own settings, so that Kubeflow's webhook is not needed.
"""

import json
from typing import Final

from orderlymq_operator.kube import driverforms, driverpods, names, podparts
from orderlymq_operator.kube.driverforms import DriverSurroundings
from orderlymq_operator.kube.resources import SPARK_APPLICATIONS, Json
from orderlymq_operator.pipeline import Pipeline

# In the image; it calls `orderlymq_spark.driver`.
MAIN_FILE: Final = "local:///opt/orderlymq/spark/main.py"
SPARK_VERSION: Final = "4.3.0"  # of the image; Kubeflow's operator only shows it
# Likewise for streams: what failed begins again from its checkpoint.
_RETRY_S: Final = 10
_ATTEMPTS: Final = 5


def spark_application(pipeline: Pipeline, around: DriverSurroundings) -> Json:
    """Return the SparkApplication."""
    spec = pipeline.spec
    claim = driverforms.claim_name(pipeline)
    account = driverforms.object_name(pipeline)
    volume = "spark.kubernetes.driver.volumes.persistentVolumeClaim.data"
    conf = {
        **driverpods.executor_settings(pipeline, claim),
        f"{volume}.mount.path": driverpods.DATA,
        f"{volume}.options.claimName": claim,
        **spec.spark.settings,
    }
    for managed in ("instances", "cores", "memory"):
        conf.pop(f"spark.executor.{managed}", None)
    made = driverforms.owned_object(
        pipeline, SPARK_APPLICATIONS.api_version, SPARK_APPLICATIONS.kind, account
    )
    made["metadata"]["annotations"][names.ANNOTATION_WORK] = driverforms.work_of(pipeline)
    secrets = {each.name: {"name": each.secret.name, "key": each.secret.key} for each in spec.env}
    security = {"securityContext": podparts.locked_down(), "envSecretKeyRefs": secrets}
    made["spec"] = {
        "type": "Python",
        "pythonVersion": "3",
        "mode": "cluster",
        "sparkVersion": SPARK_VERSION,
        "image": around.image,
        "imagePullPolicy": around.pull_policy,
        "imagePullSecrets": list(spec.image_pull_secrets),
        "mainApplicationFile": MAIN_FILE,
        "arguments": [
            *(
                "--manifest-json",
                json.dumps(driverforms.manifest(pipeline, around), sort_keys=True),
            ),
            *("--directory", driverpods.DATA),
        ],
        "sparkConf": conf,
        "suspend": spec.suspend,
        "restartPolicy": {
            "type": "Always" if spec.continuous else "OnFailure",
            "onFailureRetries": _ATTEMPTS,
            "onFailureRetryInterval": _RETRY_S,
            "onSubmissionFailureRetries": _ATTEMPTS,
            "onSubmissionFailureRetryInterval": _RETRY_S,
        },
        "driver": {
            "cores": 1,
            "memory": spec.spark.memory,
            "serviceAccount": account,
            "podSecurityContext": podparts.user(),
            **security,
        },
        "executor": {
            "instances": spec.executors.instances,
            "cores": spec.executors.cores,
            "memory": spec.executors.memory,
            "podSecurityContext": podparts.user(),
            **security,
        },
    }
    return made
