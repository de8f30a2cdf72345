"""Settings of the operator process: environment variables, and flags of the same name."""

import argparse
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

_PREFIX: Final = "ORDERLYMQ_"
RESYNC_DEFAULT_S: Final = 60.0
HTTP_PORT_DEFAULT: Final = 8080
_ALL: Final = "*"
SPARK_IMAGE_DEFAULT: Final = "orderlymq-spark:dev"


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """The settings of the operator.

    Attributes:
        namespaces: the namespaces to watch; empty for all.
        pipeline_images: images that Pipelines may name in addition to *spark_image*; * at the end matches any rest;
            None for all images.
        pipeline_settings: Spark settings that Pipelines may set in addition to the harmless ones, in the same form.
        image: the image of brokers and name servers, if the Cluster names none.
        pull_secrets: Secrets to pull images with, for Clusters and Pipelines that name none.
        spark_image: the image of drivers and executors, if the Pipeline names none.
        namespace: the namespace in which the operator itself runs and keeps its lease.
        identity: the name of this process as a holder of the lease.
        resync_s: the seconds between two resyncs, which read everything again, independent of the watches.
        release: remove the finalizers from every object and end; used before the operator is uninstalled.
    """

    namespaces: tuple[str, ...]
    image: str
    pull_policy: str
    namespace: str
    identity: str
    http_port: int
    resync_s: float
    log_level: str
    log_format: Literal["text", "json"]
    spark_image: str = SPARK_IMAGE_DEFAULT
    pipeline_images: tuple[str, ...] | None = ()
    pipeline_settings: tuple[str, ...] = ()
    pull_secrets: tuple[str, ...] = ()
    release: bool = False


def parse(
    arguments: Sequence[str], environment: Mapping[str, str] = os.environ
) -> OperatorSettings:
    """Return the settings; a flag has priority over its variable.

    Raises:
        SystemExit: a flag is unknown or a value has the wrong form; the text says which.
    """
    parser = _parser(environment)
    given = parser.parse_args(arguments)
    try:
        port, resync_s = int(given.http_port), float(given.resync_seconds)
    except ValueError as error:
        parser.error(f"http-port and resync-seconds are numbers: {error}")
    if not 1 <= resync_s <= 3600:
        parser.error(f"resync-seconds {resync_s} is not between 1 and 3600")
    if given.log_format not in {"text", "json"}:
        parser.error(f"log-format {given.log_format!r} is neither text nor json")
    watched = _list(given.watch_namespaces) or (given.operator_namespace,)
    images = _list(given.pipeline_images)
    return OperatorSettings(
        namespaces=() if _ALL in watched else watched,
        pipeline_images=None if _ALL in images else images,
        pipeline_settings=_list(given.pipeline_settings),
        image=given.image,
        pull_policy=given.image_pull_policy,
        pull_secrets=_list(given.image_pull_secrets),
        namespace=given.operator_namespace,
        identity=given.pod_name,
        http_port=port,
        resync_s=resync_s,
        log_level=given.log_level,
        log_format=given.log_format,
        spark_image=given.spark_image,
        release=given.release_finalizers,
    )


def _parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    """Return the parser of the flags; their defaults come from the variables."""
    parser = argparse.ArgumentParser(
        prog="orderlymq_operator.kube",
        description="The operator: reconciles Clusters, Topics, ConsumerGroups, Users, Pipelines and backups from custom "
        "resources.",
    )

    def setting(name: str, default: str, text: str) -> None:
        flag = "--" + name.lower().replace("_", "-")
        value = environment.get(_PREFIX + name, default)
        parser.add_argument(flag, default=value, help=f"{text} ({_PREFIX}{name})")

    setting(
        "WATCH_NAMESPACES",
        "",
        "namespaces to watch, separated by commas; * for all. Defaults to its own",
    )
    setting("IMAGE", "orderlymq:dev", "image of brokers and name servers")
    setting("SPARK_IMAGE", SPARK_IMAGE_DEFAULT, "image of the drivers of Pipelines")
    setting(
        "PIPELINE_IMAGES",
        "",
        "further images that Pipelines may name, separated by commas; * for any",
    )
    setting(
        "PIPELINE_SETTINGS", "", "further Spark settings that Pipelines may set, in the same form"
    )
    setting("IMAGE_PULL_POLICY", "IfNotPresent", "when the image is pulled")
    setting(
        "IMAGE_PULL_SECRETS",
        "",
        "pull Secrets for Clusters and Pipelines that name none, separated by commas; they must exist in each namespace",
    )
    setting("OPERATOR_NAMESPACE", "default", "namespace of the operator")
    setting("POD_NAME", socket.gethostname(), "name of this process")
    setting("HTTP_PORT", str(HTTP_PORT_DEFAULT), "port of /healthz, /readyz, /metrics")
    setting(
        "RESYNC_SECONDS", str(RESYNC_DEFAULT_S), "seconds between two complete reads of all objects"
    )
    setting("LOG_LEVEL", "INFO", "lowest level of the log lines that are written")
    setting("LOG_FORMAT", "text", "text or json")
    parser.add_argument(
        "--release-finalizers",
        action="store_true",
        help="remove the operator's finalizers from every object, then exit",
    )
    return parser


def _list(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for each in text.split(",") if (name := each.strip())))
