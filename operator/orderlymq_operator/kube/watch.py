"""
Watches of the API server, by kopf: they wake workers and do nothing else.

Rules: no handler here decides, writes or waits. What a watch shows is a hint, because an interrupted watch never shows
what disappeared meanwhile. kopf keeps no state on objects for such handlers and puts no finalizer on them.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any, Final

import kopf

from orderlymq_operator.kube.api import IN_CLUSTER
from orderlymq_operator.kube.objects.names import LABEL_CLUSTER
from orderlymq_operator.kube.resources import NODES, OWN_KINDS, PODS, STATEFUL_SETS, Json
from orderlymq_operator.resources.meta import GROUP

_REQUEST_TIMEOUT_S: Final = 30.0
_CONNECT_TIMEOUT_S: Final = 5.0
_PAGE: Final = 500
# Beside the StatefulSets of Clusters.
WATCHED: Final = (*OWN_KINDS, PODS, NODES)

# Kind, object, whether it is gone.
OnHint = Callable[[str, Json, bool], None]


async def watch(namespaces: tuple[str, ...], on_hint: OnHint, ready: asyncio.Event) -> None:
    """Watch until a signal ends the process; *ready* is set when every watch has begun.

    kopf listens for SIGTERM and SIGINT itself, so that its end is the end of the process.

    Raises:
        Exception: kopf gave up; the process should end and be started again.
    """
    registry = kopf.OperatorRegistry()

    def wake(kind: str) -> Callable[..., Awaitable[None]]:
        # Asynchronous, because kopf runs others in threads.
        async def handler(body: Any, type: str | None, **_: Any) -> None:  # noqa: A002 - kopf's name
            on_hint(kind, dict(body), type == "DELETED")

        return handler

    for resource in WATCHED:
        place = resource.api_version.split("/")
        group, version = place if len(place) == 2 else ("", place[0])
        kopf.on.event(
            group, version, resource.plural, registry=registry, id=f"wake-{resource.plural}"
        )(wake(resource.kind))
    kopf.on.event(
        "apps",
        "v1",
        STATEFUL_SETS.plural,
        labels={LABEL_CLUSTER: kopf.PRESENT},
        registry=registry,
        id="wake-sets",
    )(wake(STATEFUL_SETS.kind))
    in_cluster = bool(os.environ.get(IN_CLUSTER))
    kopf.on.login(registry=registry)(
        kopf.login_with_service_account if in_cluster else kopf.login_with_kubeconfig
    )
    await kopf.operator(
        registry=registry,
        settings=_settings(),
        standalone=True,
        clusterwide=not namespaces,
        namespaces=namespaces,
        ready_flag=ready,
    )


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.persistence.finalizer = f"{GROUP}/watch"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=GROUP)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(
        prefix=GROUP, key="last-handled"
    )
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.networking.request_timeout = _REQUEST_TIMEOUT_S
    settings.networking.connect_timeout = _CONNECT_TIMEOUT_S
    settings.watching.chunk_size = _PAGE
    # Neither namespaces nor definitions are looked for, which would need rights that nothing else needs. An operator
    # that begins before its definitions are there fails to read them, and is started again by its liveness probe.
    settings.scanning.disabled = True
    return settings
