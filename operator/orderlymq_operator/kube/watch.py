"""
Watches of the API server, by kopf: they wake workers and do nothing else.

Rules: no handler here decides, writes or waits. An interrupted watch never shows what disappeared meanwhile; it shows again
what is still there. kopf continues a watch that ends. It gives up when a list or a watch is answered by an error that it
does not know, as 410; then all watches begin again. It keeps no state on objects for such handlers and puts no finalizer
on them.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any, Final

import kopf

from orderlymq_operator.kube.api import IN_CLUSTER
from orderlymq_operator.kube.objects.names import LABEL_CLUSTER
from orderlymq_operator.kube.resources import CLAIMS, MADE, NODES, OWN_KINDS, PODS, Json, Resource
from orderlymq_operator.resources.meta import GROUP

_log = logging.getLogger(__name__)

_REQUEST_TIMEOUT_S: Final = 30.0
_CONNECT_TIMEOUT_S: Final = 5.0
_PAGE: Final = 500
# An API server marks its progress each minute; a watch that says nothing for longer begins again where it was.
SILENT_S: Final = 70.0
# Between attempts to begin all watches again, and how long they last when they are all right.
AGAIN_FIRST_S: Final = 1.0
AGAIN_MAX_S: Final = 30.0
_STEADY_S: Final = 60.0
# Of these the API server shows only what is labelled as a Cluster's.
LABELLED: Final = (*MADE, CLAIMS)
WATCHED: Final = (*OWN_KINDS, PODS, NODES, *LABELLED)

# Kind, object, whether it is gone, whether it is shown because a watch begins or begins again.
OnHint = Callable[[str, Json, bool, bool], None]


async def watch(
    namespaces: tuple[str, ...],
    on_hint: OnHint,
    ready: asyncio.Event,
    on_loss: Callable[[], None] = lambda: None,
) -> None:
    """Watch until a signal ends the process; *ready* is set when every watch has begun.

    kopf listens for SIGTERM and SIGINT itself, so that its end is the end of the process. *on_loss* is called when it
    has given up; what disappears before the watches have begun again is not shown.
    """
    loop = asyncio.get_running_loop()
    pause_s = AGAIN_FIRST_S
    while True:
        begun = loop.time()
        try:
            await _watch(namespaces, on_hint, ready)
            return
        except Exception as error:  # of any kind: without watches nothing is right
            on_loss()
            if loop.time() - begun > _STEADY_S:
                pause_s = AGAIN_FIRST_S
            _log.warning("all watches begin again in %.0f s: %r", pause_s, error)
        if await _is_ended(pause_s):
            return
        pause_s = min(2 * pause_s, AGAIN_MAX_S)


async def _is_ended(pause_s: float) -> bool:
    """Wait; return whether a signal has come meanwhile, for which kopf does not listen then."""
    ended = asyncio.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(each, ended.set)
    try:
        async with asyncio.timeout(pause_s):
            await ended.wait()
    except TimeoutError:
        return False
    return True


async def _watch(namespaces: tuple[str, ...], on_hint: OnHint, ready: asyncio.Event) -> None:
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
    settings.watching.inactivity_timeout = SILENT_S
    for resource in LABELLED:
        settings.watching.label_selectors[_place(resource)] = LABEL_CLUSTER
    # Neither namespaces nor definitions are looked for, which would need rights that nothing else needs. An operator
    # that begins before its definitions are there fails to read them, and is started again by its liveness probe.
    settings.scanning.disabled = True
    return settings
