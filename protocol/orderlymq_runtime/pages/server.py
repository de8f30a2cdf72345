"""
The HTTP pages of every process: `/healthz`, `/readyz`, `/metrics` and `/status`.

`/healthz` answers while the event loop turns and the checks that the process has added pass. `/readyz` says whether the process does its
work, and why not. `/metrics` is Prometheus text. `/status` is JSON for people and the operator. Rules: a request
reads and never changes anything. One loop iteration makes one metric, or one page that may be long,
however many are asked for. `/healthz` and `/readyz` are short and wait for no other page.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import orjson
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from orderlymq_runtime.pages.callers import Callers, let_loop_turn, note_refusal, runner
from orderlymq_runtime.pages.looplag import LoopStall
from orderlymq_runtime.pages.token import PageGuard
from orderlymq_runtime.remoting.server import listening_failed
from orderlymq_runtime.security.cleartext import stays_here
from orderlymq_runtime.security.tls import SniffingListener
from orderlymq_runtime.sockets.inputbudget import InputBudget
from orderlymq_runtime.sockets.listener import listening_socket

_log = logging.getLogger(__name__)

Page = Callable[[web.Request], Awaitable[web.StreamResponse]]

_UNAUTHORIZED: Final = 401
# Characters of a path, as it came, that the log shows.
_SHOWN_MAX: Final = 200
# Pages that grow with the cluster.
_LONG_PAGES: Final = frozenset({"/metrics", "/status"})
# Probes have short time-outs; a scrape that is still running at the end must not delay the exit.
_SHUTDOWN_S = 1.0

# Probes, Prometheus and people need a handful; these files do not count as connections of clients (``openfiles``).
CONNECTIONS_MAX: Final = 64


class HealthServer:
    """Serves the four pages on one address.

    Args:
        ready: returns whether the process is ready, and a sentence that says why (not).
        alive: returns whether the process should live on, and a sentence; without it, it should while it answers.
        status: returns the content of `/status`; values are JSON types.
        brief: returns the content of `/status?brief`, in which no client chooses a text; by default the same.
        registry: the metrics of the process, to which those of its event loop are added.
        guard: who may ask, and how; by default everybody without TLS.
        budget: the budget on which connections draw; if it is full, the oldest is closed.
    """

    def __init__(  # noqa: PLR0913 - each page has what it shows
        self,
        host: str,
        port: int,
        *,
        ready: Callable[[], tuple[bool, str]],
        status: Callable[[], Mapping[str, object]],
        registry: CollectorRegistry,
        brief: Callable[[], Mapping[str, object]] | None = None,
        alive: Callable[[], tuple[bool, str]] | None = None,
        guard: PageGuard | None = None,
        budget: InputBudget | None = None,
    ) -> None:
        guard = guard or PageGuard()
        self._budget = budget or InputBudget()
        self._token = guard.token
        self._host = host
        self._port = port
        self._ready = ready
        self._status = status
        self._brief = brief or status
        self._registry = registry
        self._stall = LoopStall(registry)
        self._alive = alive
        self._tls = guard.tls
        self._turn = asyncio.Lock()
        self._listener: asyncio.Server | SniffingListener | None = None
        self._runner: web.AppRunner | None = None

    async def start(self) -> tuple[str, int]:
        """Listen, and return the address, with the real port if port 0 was given.

        Raises:
            PortInUseError: Another process listens there.
        """
        running = runner(self.application(), shutdown_timeout=_SHUTDOWN_S)
        await running.setup()
        try:
            bound = await self._listen(running)
        except OSError as error:
            await running.cleanup()
            raise listening_failed(error, self._host, self._port) from error
        self._runner = running
        self._stall.start()
        return bound

    def application(self) -> web.Application:
        """Return the pages by their paths."""
        application = web.Application(
            middlewares=[let_loop_turn, self._await_turn, _answer_failure, _refuse_body]
        )
        application.router.add_get("/healthz", self._get_healthz)
        application.router.add_get("/readyz", self._get_readyz)
        application.router.add_get("/metrics", self._guarded(self._get_metrics))
        application.router.add_get("/status", self._guarded(self._get_status))

        return application

    async def _listen(self, running: web.AppRunner) -> tuple[str, int]:
        sock = await listening_socket(self._host, self._port, backlog=CONNECTIONS_MAX)
        server = running.server
        assert server is not None, "a runner that is set up has a server"
        callers = Callers(server, CONNECTIONS_MAX, self._budget)
        if self._tls is None:
            loop = asyncio.get_running_loop()
            self._listener = await loop.create_server(callers.accept, sock=sock)
        else:
            self._listener = SniffingListener(
                sock,
                self._tls,
                callers.accept,
                note_refusal,
                greetings_max=CONNECTIONS_MAX,
                budget=self._budget,
            )
        bound = sock.getsockname()
        return str(bound[0]), int(bound[1])

    async def close(self) -> None:
        """Stop; harmless if it never started."""
        self._stall.close()
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @web.middleware
    async def _await_turn(self, request: web.Request, handler: Page) -> web.StreamResponse:
        """Make one long page at a time."""
        if request.path not in _LONG_PAGES:
            # A probe has 2 s. A scrape takes an iteration for each of some hundred metrics, and these may be slow.
            return await handler(request)
        async with self._turn:
            await asyncio.sleep(0)
            return await handler(request)

    def _guarded(self, page: Page) -> Page:
        """Return *page* with a check of the token, if one is required."""
        token = self._token
        if token is None:
            return page

        async def guarded(request: web.Request) -> web.StreamResponse:
            objection = token.objection(
                request.headers.get("Authorization", ""),
                is_protected=request.secure or stays_here(request.remote or ""),
            )
            if objection is not None:
                code, text = objection
                headers = {"WWW-Authenticate": "Bearer"} if code == _UNAUTHORIZED else {}
                return web.Response(text=text, status=code, headers=headers)
            return await page(request)

        return guarded

    async def _get_healthz(self, request: web.Request) -> web.Response:
        is_alive, reason = (True, "ok") if self._alive is None else self._alive()
        return web.Response(text=reason + "\n", status=200 if is_alive else 503)

    async def _get_readyz(self, request: web.Request) -> web.Response:
        is_ready, reason = self._ready()
        return web.Response(text=reason + "\n", status=200 if is_ready else 503)

    async def _get_metrics(self, request: web.Request) -> web.Response:
        parts = []
        for metric in self._registry.collect():
            # All metrics of a large cluster take as long as a third of an election time-out.
            parts.append(generate_latest(_One(metric)))
            await asyncio.sleep(0)
        return web.Response(body=b"".join(parts), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _get_status(self, request: web.Request) -> web.Response:
        status = self._brief() if "brief" in request.query else self._status()
        body = orjson.dumps(status, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_INDENT_2)
        return web.Response(body=body + b"\n", content_type="application/json")


class _One(Collector):
    """A collector of a single metric."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> list[Metric]:
        return [self._metric]


@web.middleware
async def _answer_failure(request: web.Request, handler: Page) -> web.StreamResponse:
    """Turn an exception of a page into a 500 that names it, with one log entry."""
    try:
        return await handler(request)
    except web.HTTPException:
        raise
    except Exception as error:
        _log.exception("GET %s failed", request.rel_url.raw_path[:_SHOWN_MAX])
        return web.Response(text=f"{type(error).__name__}: {error}\n", status=500)


@web.middleware
async def _refuse_body(request: web.Request, handler: Page) -> web.StreamResponse:
    """Refuse a request with a body, because no page takes one."""
    if not request.body_exists:
        return await handler(request)
    refusal = web.Response(text="these pages accept no body; send GET without one\n", status=413)
    refusal.force_close()
    return refusal
