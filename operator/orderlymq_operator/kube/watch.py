"""
Watches of the API server, by kopf: they wake workers and do nothing else.

Rules: no handler here decides, writes or waits. A watch that was interrupted does not report objects that disappeared
meanwhile; it reports again those that still exist. kopf continues a watch that ends. kopf gives up when a list or a
watch gets an error that it does not handle, such as 403 or 410. It does not notice when a watch is cancelled. In both
cases, all watches of that namespace are started again. Each namespace therefore has its own kopf: a namespace that is
gone ends no watch of another one, and is watched again when it can be read. kopf runs in a thread with its own event
loop, because at its end it cancels every task of the loop that is younger than itself. For these handlers, kopf stores
no state and sets no finalizer on objects.
"""

import asyncio
import concurrent.futures
import functools
import logging
import os
import signal
import ssl
import threading
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Any, Final

import kopf

from orderlymq_operator.kube.api import IN_CLUSTER, PAGE
from orderlymq_operator.kube.objects.names import LABEL_CLUSTER
from orderlymq_operator.kube.resources import CLAIMS, MADE, NODES, OWN_KINDS, PODS, Json, Resource
from orderlymq_operator.resources.meta import GROUP
from orderlymq_runtime.security.tls import checking_as_kubernetes

_log = logging.getLogger(__name__)

_REQUEST_TIMEOUT_S: Final = 30.0
_CONNECT_TIMEOUT_S: Final = 5.0
# An API server sends a bookmark each minute. A watch that is silent for longer is started again where it stopped.
SILENT_S: Final = 70.0
# The pauses between attempts to start all watches again. The pause is reset after watches have lasted `_STEADY_S`.
AGAIN_FIRST_S: Final = 1.0
AGAIN_MAX_S: Final = 30.0
_STEADY_S: Final = 60.0
# The pauses between kopf's own attempts at a request that fails, before it gives up. They are long enough for an API
# server that restarts, and short enough to notice soon that a right was removed.
RETRIES_S: Final = (1, 1, 2, 3, 5, 8)
_END_S: Final = 5.0
POLL_S: Final = 1.0  # between two checks whether kopf has lost a watch
# The first words in the names of kopf's own tasks.
_WATCHER: Final = "watcher for "
_THEIR_KEEPER: Final = "multidimensional multitasker"
# Of these kinds, the watches show only objects with the label of a Cluster.
LABELLED: Final = (*MADE, CLAIMS)
WATCHED: Final = (*OWN_KINDS, PODS, NODES, *LABELLED)

# Kind, object, whether it is gone, whether it comes from the list at the start of a watch.
OnHint = Callable[[str, Json, bool, bool], None]


async def watch(
    namespaces: tuple[str, ...],
    on_hint: OnHint,
    ready: asyncio.Event,
    on_loss: Callable[[], None] = lambda: None,
    is_readable: Callable[[str], bool] = lambda _: True,
) -> None:
    """Watch until a signal ends the process; *ready* is set while the watches of all readable namespaces run.

    *on_loss* is called when kopf has given up: until the watches run again, they miss objects that disappear. A
    namespace whose watches failed and that is not readable is not watched until it is readable, and *ready* does not
    wait for it.
    """
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(each, ended.set)
    end = loop.create_task(ended.wait())
    # None stands for the whole API server: all namespaces, or, if *namespaces* are given, objects without a namespace.
    places = (None, *namespaces)
    missing = set(places)

    def note(place: str | None, begun: bool) -> None:
        (missing.discard if begun else missing.add)(place)
        (ready.clear if missing else ready.set)()

    async def keep(place: str | None) -> None:
        kinds = [kind for kind in WATCHED if not namespaces or kind.namespaced == bool(place)]
        pause_s = AGAIN_FIRST_S
        while not end.done():
            begun = loop.time()
            error = await _watch_once(place, kinds, on_hint, functools.partial(note, place), end)
            if end.done():
                return
            on_loss()
            if loop.time() - begun > _STEADY_S:
                pause_s = AGAIN_FIRST_S
            what = "all watches" if place is None else f"all watches of namespace {place!r}"
            _log.warning("%s start again in %.0f s: %r", what, pause_s, error)
            await asyncio.wait({end}, timeout=pause_s)
            pause_s = min(2 * pause_s, AGAIN_MAX_S)
            while place is not None and not is_readable(place) and not end.done():
                note(place, True)
                await asyncio.wait({end}, timeout=AGAIN_FIRST_S)

    try:
        async with asyncio.TaskGroup() as tasks:
            for place in places:
                tasks.create_task(keep(place), name=f"watches of {place or 'the API server'}")
    finally:
        end.cancel()


async def _watch_once(
    place: str | None,
    kinds: Collection[Resource],
    on_hint: OnHint,
    note: Callable[[bool], None],
    end: asyncio.Future[Any],
) -> BaseException | None:
    """Watch *kinds* in a namespace, or in all, until *end* or until kopf gives up; return kopf's error, if any."""
    loop = asyncio.get_running_loop()
    begun: concurrent.futures.Future[None] = concurrent.futures.Future()
    over: concurrent.futures.Future[None] = concurrent.futures.Future()
    begun.add_done_callback(lambda _: loop.call_soon_threadsafe(note, True))
    registry = _registry(kinds, lambda *hint: loop.call_soon_threadsafe(on_hint, *hint))

    # The stop flag is an event of kopf's own loop: for a threading event, kopf would start a thread that outlives it.
    stops: list[Callable[[], object]] = []

    async def serve() -> None:
        stop, own = asyncio.Event(), asyncio.get_running_loop()
        stops.append(lambda: own.call_soon_threadsafe(stop.set))
        own.set_exception_handler(_note_error)
        # This task must be older than kopf's, because kopf cancels all younger tasks at its end.
        checks = asyncio.create_task(_until_one_ends(stop))
        kopfs = asyncio.create_task(
            kopf.operator(
                registry=registry,
                settings=_settings(),
                standalone=True,
                clusterwide=place is None,
                namespaces=() if place is None else (place,),
                ready_flag=begun,
                stop_flag=stop,
            )
        )
        try:
            await asyncio.wait({kopfs, checks}, return_when=asyncio.FIRST_COMPLETED)
            # At its end kopf may wait forever for watches that wait for credentials, which no task fetches any more.
            await asyncio.wait({kopfs}, timeout=_END_S)
            if kopfs.done():
                await kopfs
            if checks.done():
                raise RuntimeError("a watch ended without an error")
        except Exception as error:
            over.set_exception(error)  # here: the end of this loop may wait for the same watches
        else:
            over.set_result(None)

    def work() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:  # the error must not be lost with the thread
            if not over.done():
                over.set_exception(error)

    threading.Thread(target=work, name="kopf", daemon=True).start()
    done: asyncio.Future[Any] = asyncio.wrap_future(over)
    try:
        await asyncio.wait({done, end}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        note(False)
        if stops and not over.done():
            with suppress(RuntimeError):  # kopf's loop is closed already
                stops[0]()
        await asyncio.wait({done}, timeout=_END_S)
    return done.exception() if done.done() and not done.cancelled() else None


async def _until_one_ends(stop: asyncio.Event) -> None:
    """End kopf when one of its watches has ended."""
    most = 0
    while (count := sum(_is_named(each, _WATCHER) for each in asyncio.all_tasks())) >= most:
        most = count
        await asyncio.sleep(POLL_S)
    stop.set()


def _note_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error that no code awaits, except errors of watches: kopf has logged those, and raises one of them."""
    if not _is_named(context.get("future"), _WATCHER, _THEIR_KEEPER):
        loop.default_exception_handler(context)


def _is_named(task: object, *begins: str) -> bool:
    return isinstance(task, asyncio.Task) and task.get_name().startswith(begins)


def _registry(kinds: Collection[Resource], on_hint: Callable[..., object]) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    def wake(kind: str) -> Callable[..., Awaitable[None]]:
        # Asynchronous, because kopf runs synchronous handlers in threads.
        async def handler(body: Any, type: str | None, **_: Any) -> None:  # noqa: A002 - kopf's name
            on_hint(kind, dict(body), type == "DELETED", type is None)

        return handler

    for resource in kinds:
        kopf.on.event(*_place(resource), registry=registry, id=f"wake-{resource.plural}")(
            wake(resource.kind)
        )
    in_cluster = bool(os.environ.get(IN_CLUSTER))
    login = kopf.login_with_service_account if in_cluster else kopf.login_with_kubeconfig

    @kopf.on.login(registry=registry)
    def credentials(**given: Any) -> kopf.ConnectionInfo | None:
        found = login(**given)
        return None if found is None else ApiServerConnection(**vars(found))

    return registry


class ApiServerConnection(kopf.ConnectionInfo):
    """The connection from kopf to the API server."""

    def as_ssl_context(self) -> ssl.SSLContext:
        """Trust the cluster's authority, with checks no stricter than those of kubectl."""
        return checking_as_kubernetes(super().as_ssl_context())


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
    settings.networking.error_backoffs = RETRIES_S
    settings.watching.chunk_size = PAGE
    settings.watching.inactivity_timeout = SILENT_S
    for resource in LABELLED:
        settings.watching.label_selectors[_place(resource)] = LABEL_CLUSTER
    # kopf does not look for namespaces or definitions, because that would need rights that nothing else needs. Watches
    # of kinds that are not defined fail and are started again.
    settings.scanning.disabled = True
    return settings
