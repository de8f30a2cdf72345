"""
Watches of the API server, by kopf: they wake workers and do nothing else.

Rules: no handler here decides, writes or waits. An interrupted watch never shows what disappeared meanwhile; it shows again
what is still there. kopf keeps no state on objects for such handlers and puts no finalizer on them.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any, Final

import kopf

from orderlymq_operator.kube.api import IN_CLUSTER
from orderlymq_operator.kube.objects.names import LABEL_CLUSTER
from orderlymq_operator.kube.resources import CLAIMS, MADE, NODES, OWN_KINDS, PODS, Json, Resource
from orderlymq_operator.resources.meta import GROUP

_REQUEST_TIMEOUT_S: Final = 30.0
_CONNECT_TIMEOUT_S: Final = 5.0
_PAGE: Final = 500
# Of these the API server shows only what is labelled as a Cluster's.
LABELLED: Final = (*MADE, CLAIMS)
WATCHED: Final = (*OWN_KINDS, PODS, NODES, *LABELLED)

# Kind, object, whether it is gone, whether it is shown because a watch begins or begins again.
OnHint = Callable[[str, Json, bool, bool], None]


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
            on_hint(kind, dict(body), type == "DELETED", type is None)

        return handler

    for resource in WATCHED:
        kopf.on.event(*_place(resource), registry=registry, id=f"wake-{resource.plural}")(
            wake(resource.kind)
        )
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


def _place(resource: Resource) -> tuple[str, str, str]:
    group, _, version = resource.api_version.rpartition("/")
    return group, version, resource.plural


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
    for resource in LABELLED:
        settings.watching.label_selectors[_place(resource)] = LABEL_CLUSTER
    # Neither namespaces nor definitions are looked for, which would need rights that nothing else needs. An operator
    # that begins before its definitions are there fails to read them, and is started again by its liveness probe.
    settings.scanning.disabled = True
    return settings
