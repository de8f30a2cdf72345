"""
The console as a process: this module alone creates its parts and connects them.

Life cycle: `Console.start` listens; `close` ends viewers, changes, questions and connections.
"""

import asyncio
import contextlib
import functools
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import IO, Final

from aiohttp import web

from orderlymq.admin.client import AdminClient
from orderlymq.errors import SettingError
from orderlymq.ownedtasks import Lifecycle, OwnedTasks
from orderlymq_console.apiserver import ApiServer
from orderlymq_console.audit import Audit
from orderlymq_console.cluster import ClusterReader
from orderlymq_console.collector import Collector
from orderlymq_console.pipelines.files import PipelineFiles
from orderlymq_console.pipelines.kubernetes import ClusterPipelines
from orderlymq_console.pipelines.reports import PipelineSource
from orderlymq_console.pods import Pods
from orderlymq_console.settings import Account, ConsoleSettings, local_account
from orderlymq_console.web.changes import Changes, add_changes
from orderlymq_console.web.guard import guard
from orderlymq_console.web.keys import AUDIT, READER, RENDERER, SESSIONS, SETTINGS, VIEWERS
from orderlymq_console.web.renderer import Renderer, static_files
from orderlymq_console.web.sessions import Sessions
from orderlymq_console.web.signin import add_sign_in
from orderlymq_console.web.viewers import Viewers
from orderlymq_console.web.views import add_views
from orderlymq_runtime.pages.callers import Callers, let_loop_turn, note_refusal, runner
from orderlymq_runtime.process.openfiles import connections_allowed, raise_limit
from orderlymq_runtime.security.tls import ServerTls, SniffingListener, TlsError, TlsFiles
from orderlymq_runtime.sockets.addresses import join_address
from orderlymq_runtime.sockets.inputbudget import InputBudget
from orderlymq_runtime.sockets.listener import EVERY_ADDRESS, listening_socket

# A form holds a token or a confirmation.
_FORM_SIZE_MAX: Final = 64 * 1024
_SHUTDOWN_S: Final = 2.0
# Enough for a hundred open pages, which are `VIEWERS_MAX`, and their other requests.
CONNECTIONS_MAX: Final = 512
# A browser sends its next request within this time; a connection that is silent for longer takes a place from others.
_KEEP_ALIVE_S: Final = 75.0
# How long the rest of a request is read if the request was answered before its end.
_LINGER_S: Final = 2.0
# How often the console reads statuses while nobody looks, to know the changes of the last hour: one request a minute to each leader.
_LOOK_S: Final = 60.0


class Console(Lifecycle):
    """The console; use `async with`, or `start` and `close`.

    Args:
        audit_log: the log to which each change is written.

    Attributes:
        local: the account of the person who started the console; None if accounts were given.
        url: its address, once it listens.
        application: the pages by their paths.
        collector: the answers of brokers.
        viewers: the viewers that follow the cluster now.
    """

    def __init__(self, settings: ConsoleSettings, audit_log: IO[str] = sys.stderr) -> None:
        self.url = ""
        self.local: Account | None = None if settings.accounts else local_account()
        self._settings = settings
        self._admin = AdminClient(settings.name_servers)
        self.collector = Collector()
        accounts = settings.accounts or ((self.local,) if self.local is not None else ())
        self.viewers = Viewers()
        self.application = application = web.Application(
            middlewares=[let_loop_turn, guard], client_max_size=_FORM_SIZE_MAX
        )
        application[SETTINGS] = settings
        application[SESSIONS] = Sessions(accounts)
        self._reader = application[READER] = ClusterReader(
            self._admin, self.collector, _pipelines(settings), _pods(settings)
        )
        self._tasks = OwnedTasks()
        application[RENDERER] = Renderer(
            "; ".join(self._admin.instance.name_servers), read_only=settings.read_only
        )
        application[VIEWERS] = self.viewers
        application[AUDIT] = Audit(audit_log)
        add_views(application)
        self._changes = Changes()
        add_changes(application, self._changes)
        add_sign_in(application)
        for name, (body, kind) in static_files().items():
            application.router.add_get(f"/static/{name}", _serve(body, kind))
        application.router.add_get("/healthz", _serve(b"ok\n", "text/plain"))
        application.on_shutdown.append(self._end_viewers)
        self._runner = runner(
            application,
            shutdown_timeout=_SHUTDOWN_S,
            keepalive_timeout=_KEEP_ALIVE_S,
            lingering_time=_LINGER_S,
        )
        self._listener: asyncio.Server | SniffingListener | None = None

    async def start(self) -> None:
        """Listen for connections.

        Raises:
            SettingError: The console cannot listen on the address, or the certificate cannot be used.
        """
        settings = self._settings
        tls = _tls(settings)
        await self._admin.start()
        await self._runner.setup()
        try:
            self._listener = await self._listen(tls)
        except OSError as error:
            await self.close()
            raise SettingError(
                f"the console cannot listen on {settings.host}:{settings.port}: {error.strerror or error}; "
                "pass another --listen"
            ) from error
        host, port = self._listener.sockets[0].getsockname()[:2]
        self._tasks.keep(self._look, "look")
        self.url = f"{'http' if tls is None else 'https'}://{join_address(host, port)}"

    async def _listen(self, tls: ServerTls | None) -> asyncio.Server | SniffingListener:
        server = self._runner.server
        assert server is not None, "a runner that is set up has a server"
        connections_max = min(CONNECTIONS_MAX, connections_allowed())
        budget = InputBudget()
        accept = Callers(server, connections_max, budget).accept
        host, port, loop = self._settings.host, self._settings.port, asyncio.get_running_loop()
        if tls is None and host != EVERY_ADDRESS:
            return await loop.create_server(accept, host, port)
        sock = await listening_socket(host, port, backlog=connections_max)
        if tls is None:
            return await loop.create_server(accept, sock=sock, backlog=connections_max)
        return SniffingListener(
            sock, tls, accept, note_refusal, greetings_max=connections_max, budget=budget
        )

    async def close(self) -> None:
        """Stop listening, and end everything that is under way."""
        await self._tasks.cancel()
        if self._listener is not None:
            self._listener.close()
        await self._runner.cleanup()
        await self._changes.close()
        await self.collector.close()
        await self._admin.close()

    async def _look(self) -> None:
        while True:
            await self._reader.statuses()
            await asyncio.sleep(_LOOK_S)

    async def _end_viewers(self, _: web.Application) -> None:
        self.viewers.closing.set()


async def serve(
    settings: ConsoleSettings,
    started: Callable[[Console], None],
    audit_log: IO[str],
    parent: IO[bytes] | None = None,
) -> None:
    """Serve until cancelled, or until *parent* ends: a pipe whose other end the starting process holds."""
    raise_limit()
    is_over = asyncio.Event()
    async with Console(settings, audit_log) as console:
        started(console)
        if parent is not None:
            over = functools.partial(asyncio.get_running_loop().call_soon_threadsafe, is_over.set)
            # A read of a pipe cannot be cancelled, so its thread must not delay the end of the process.
            threading.Thread(target=_read_out, args=(parent, over), daemon=True).start()
        await is_over.wait()


def _read_out(parent: IO[bytes], over: Callable[[], object]) -> None:
    with contextlib.suppress(OSError, RuntimeError):  # the loop has already ended
        while parent.read(1):
            pass
        over()


def _pipelines(settings: ConsoleSettings) -> PipelineSource | None:
    if settings.pipelines_of is not None:
        return ClusterPipelines(*settings.pipelines_of, ApiServer.in_pod())
    return PipelineFiles(settings.pipelines) if settings.pipelines else None


def _pods(settings: ConsoleSettings) -> Pods | None:
    if settings.pipelines_of is None:
        return None
    return Pods(settings.pipelines_of[0], ApiServer.in_pod())


def _tls(settings: ConsoleSettings) -> ServerTls | None:
    if settings.certificate is None or settings.key is None:
        return None
    try:
        return ServerTls(TlsFiles(settings.certificate, settings.key), "enforcing")
    except TlsError as error:
        raise SettingError(str(error)) from error


def _serve(body: bytes, kind: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type=kind, charset="utf-8")

    return handle
