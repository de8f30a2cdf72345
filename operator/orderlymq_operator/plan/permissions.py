"""
Which fields of a Pipeline are refused because its driver or executors would get rights that a Pipeline must not have.

Pure. Rules: the allowed values are listed; everything else is refused. A Pipeline reads the Secrets and claims of its
own namespace, except those that belong to a Cluster and those that open the backups of a Cluster. `tenants` decides
which Clusters it may name.
"""

import re
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from typing import Final

from orderlymq_operator.plan.actions import ConditionReport
from orderlymq_operator.resources.backups.destination import Destination
from orderlymq_operator.resources.cluster.cluster import Cluster, ClusterSpec
from orderlymq_operator.resources.pipelines.pipeline import Pipeline, PipelineSpec

# Suffixes of the names of Secrets that are made for a Cluster: its accounts, its keys, its authority.
_CLUSTER_SECRETS: Final = ("-operator", "-identity", "-ca", "-internal", "-internal-tls")
# The claims of the StatefulSets of brokers and name servers, including Clusters that are gone or not created yet.
_CLUSTER_CLAIM: Final = re.compile(r"^data-.+-([0-9]+|nameserver)-[0-9]+$")
# Allowed variables. No variable of a loader, a shell, Python, Java or Spark has such a name: those could run other
# programs.
_VARIABLE: Final = re.compile(
    r"^(ORDERLYMQ_\w+|\w*(SECRET|KEY|PASSWORD|TOKEN)\w*|PYICEBERG_CATALOG__\w+__(CREDENTIAL|URI))$"
)
# Exceptions: variables that match but that programs read. OpenSSL writes session keys to the first; Python, pyspark
# and Spark load code or read Java's options by some of the others.
_OBEYED: Final = ("SSLKEYLOGFILE", "PYTHON", "PYSPARK_", "SPARK_", "_SPARK_")
# Variables that say where an object store is and which identity is used. AWS_PROFILE is missing, because it may name
# a program.
_STORES: Final = (
    *("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT", "AWS_ENDPOINT_URL"),
    *("AWS_ENDPOINT_URL_S3", "AWS_ALLOW_HTTP", "AZURE_CLIENT_ID", "AZURE_TENANT_ID"),
    *("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ENDPOINT", "GOOGLE_APPLICATION_CREDENTIALS"),
)
_LOCAL_MASTER: Final = re.compile(r"^local(\[[0-9*]+(,[0-9]+)?\])?$")
# Settings for resources and pace of a run. Everything else of spark.kubernetes names accounts, volumes, Secrets,
# templates, labels or security contexts of pods, or another namespace.
_KUBERNETES: Final = (
    "spark.kubernetes.allocation.batch.delay",
    "spark.kubernetes.allocation.batch.size",
    "spark.kubernetes.allocation.driver.readinessTimeout",
    "spark.kubernetes.allocation.executor.timeout",
    "spark.kubernetes.allocation.maxPendingPods",
    "spark.kubernetes.driver.limit.cores",
    "spark.kubernetes.driver.request.cores",
    "spark.kubernetes.executor.deleteOnTermination",
    "spark.kubernetes.executor.eventProcessingInterval",
    "spark.kubernetes.executor.limit.cores",
    "spark.kubernetes.executor.missingPodDetectDelta",
    "spark.kubernetes.executor.request.cores",
    "spark.kubernetes.memoryOverheadFactor",
)
# Settings that tune a query and name no program, class, jar, script or address.
_SPARK: Final = (
    "spark.app.name",
    "spark.broadcast.blockSize",
    "spark.cleaner.*",
    "spark.default.parallelism",
    "spark.driver.cores",
    "spark.driver.maxResultSize",
    "spark.driver.memory",
    "spark.driver.memoryOverhead",
    "spark.driver.memoryOverheadFactor",
    "spark.dynamicAllocation.*",
    "spark.excludeOnFailure.*",
    "spark.executor.cores",
    "spark.executor.heartbeatInterval",
    "spark.executor.instances",
    "spark.executor.maxNumFailures",
    "spark.executor.memory",
    "spark.executor.memoryOverhead",
    "spark.executor.memoryOverheadFactor",
    "spark.executor.pyspark.memory",
    "spark.locality.wait*",
    "spark.log.level",
    "spark.memory.*",
    "spark.network.timeout*",
    "spark.python.authenticate.socketTimeout",
    "spark.python.worker.memory",
    "spark.python.worker.reuse",
    "spark.rdd.compress",
    "spark.reducer.*",
    "spark.rpc.askTimeout",
    "spark.scheduler.mode",
    "spark.shuffle.compress",
    "spark.shuffle.file.buffer",
    "spark.shuffle.io.maxRetries",
    "spark.shuffle.io.retryWait",
    "spark.shuffle.spill.compress",
    "spark.speculation*",
    "spark.sql.adaptive.*",
    "spark.sql.ansi.*",
    "spark.sql.autoBroadcastJoinThreshold",
    "spark.sql.broadcastTimeout",
    "spark.sql.caseSensitive",
    "spark.sql.cbo.*",
    "spark.sql.codegen.*",
    "spark.sql.execution.arrow.*",
    "spark.sql.files.*",
    "spark.sql.join.*",
    "spark.sql.legacy.*",
    "spark.sql.optimizer.*",
    "spark.sql.parquet.*",
    "spark.sql.session.timeZone",
    "spark.sql.shuffle.*",
    "spark.sql.streaming.*",
    "spark.task.cpus",
    "spark.task.maxFailures",
    "spark.ui.enabled",
    "spark.ui.showConsoleProgress",
)
# A setting whose name ends like this holds a class, of which Spark or pyiceberg makes an object.
_OWN_CLASSES: Final = "pyiceberg."
_CLASS: Final = re.compile(r"(class|classes|listeners|plugins|impl)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class DriverPolicy:
    """What the operator's owner permits Pipelines.

    Attributes:
        image: the operator's own image with Spark, which is always allowed.
        images: further images, or prefixes of names that end with *; None allows any image.
        settings: further settings of Spark, in the same form.
    """

    image: str
    images: tuple[str, ...] | None = ()
    settings: tuple[str, ...] = ()


def forbidden(
    pipeline: Pipeline,
    policy: DriverPolicy,
    clusters: Iterable[Cluster],
    backups: Iterable[Destination] = (),
) -> ConditionReport | None:
    """Return why *pipeline* may not run, or None if it may.

    Args:
        pipeline: the Pipeline.
        policy: what the operator's owner permits.
        clusters: the Clusters of its namespace.
        backups: the destinations of the Backups of its namespace.
    """
    for text in _violations(pipeline, policy, clusters, backups):
        return ConditionReport("False", "FieldNotAllowed", text)
    return None


def is_kept_for_clusters(secret: str) -> bool:
    """Return whether a Secret of this name is reserved for those that the operator makes for a Cluster."""
    return secret.endswith(_CLUSTER_SECRETS)


def _violations(
    pipeline: Pipeline,
    policy: DriverPolicy,
    clusters: Iterable[Cluster],
    backups: Iterable[Destination],
) -> Iterator[str]:
    spec = pipeline.spec
    if not _allows_image(policy, spec.image):
        yield (
            f"spec.image {spec.image!r} is not allowed; remove it to use {policy.image!r}, or ask the operator's owner to add "
            "it to pipelines.allowedImages"
        )
    for name in sorted(spec.spark.settings):
        if not _allows_setting(policy, name):
            yield (
                f"spec.spark.settings: {name!r} is not allowed, because it can name programs, accounts, volumes or Secrets; "
                "remove it, or ask the operator's owner to add it to pipelines.allowedSettings"
            )
    if spec.backend == "pod" and not _LOCAL_MASTER.match(spec.spark.master):
        yield (
            f"spec.spark.master {spec.spark.master!r} is not allowed: backend pod runs Spark in its own pod; write local[*] or "
            "local[N], or choose another backend"
        )
    claim = spec.storage.claim_name
    if claim is not None and _CLUSTER_CLAIM.match(claim):
        yield (
            f"spec.storage.claimName {claim!r} is not allowed: the claims of brokers and name servers have names of this form; "
            "name another claim, or remove the field to get one"
        )
    for name, value in sorted(spec.catalog.properties.items() if spec.catalog is not None else ()):
        if _CLASS.search(name) and not str(value).startswith(_OWN_CLASSES):
            yield (
                f"spec.catalog.properties: {name!r} is not allowed, because it names a class outside pyiceberg "
                f"({_OWN_CLASSES}...); remove it"
            )
    reserved = {name for each in clusters for name in _secrets_of(each.spec)}
    reserved.update(map(_credentials, backups))
    yield from _secret_violations(spec, reserved)


def _secret_violations(spec: PipelineSpec, reserved: Set[str | None]) -> Iterator[str]:
    for each in spec.env:
        if not _allows_variable(each.name):
            yield (
                f"spec.env: a variable {each.name!r} is not allowed, because some variables change what programs do; choose a "
                "name that begins with ORDERLYMQ_, or one that contains SECRET, KEY, PASSWORD or TOKEN"
            )
    secrets = [each.secret.name for each in spec.env]
    for field, named in (("env", secrets), ("imagePullSecrets", spec.image_pull_secrets)):
        for name in named:
            if name in reserved or is_kept_for_clusters(name):
                yield (
                    f"spec.{field}: Secret {name!r} is not allowed: it belongs to a Cluster or its backups, or has a name that "
                    "is reserved for one; put the values that the Pipeline needs into a separate Secret"
                )


def _secrets_of(spec: ClusterSpec) -> Iterator[str | None]:
    """Yield the Secrets that a Cluster names for keys, tokens and accounts; those for registries are not reserved."""
    security, console = spec.security, spec.console
    yield from (each.secret_name for each in (spec.tls, security.internal_issuer) if each)
    yield from (each.tls.secret_name for each in spec.listeners if each.tls)
    yield from (each.secret_name for each in (security.pages_token, console.accounts) if each)
    if console.ingress is not None:
        yield console.ingress.tls_secret_name
    if spec.bootstrap is not None:
        yield _credentials(spec.bootstrap.from_backup.destination)


def _credentials(destination: Destination) -> str | None:
    """Return the Secret that opens a backup destination. A process that reads it can read all messages and accounts."""
    store = destination.object_store
    named = None if store is None else store.credentials_secret_ref
    return None if named is None else named.name


def _allows_image(policy: DriverPolicy, image: str | None) -> bool:
    if image is None or policy.images is None:
        return True
    return _listed(image, (policy.image, *policy.images))


def _allows_variable(name: str) -> bool:
    if name in _STORES:
        return True
    return bool(_VARIABLE.match(name)) and not (_CLASS.search(name) or name.startswith(_OBEYED))


def _allows_setting(policy: DriverPolicy, name: str) -> bool:
    if _listed(name, policy.settings):
        return True
    return _listed(name, (*_KUBERNETES, *_SPARK)) and not _CLASS.search(name)


def _listed(name: str, allowed: Iterable[str]) -> bool:
    return any(
        name.startswith(each[:-1]) if each.endswith("*") else name == each for each in allowed
    )
