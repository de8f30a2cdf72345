"""
Commands reach a supervisor by HTTP on loopback, with a secret that only the owner of the data can read.

The supervisor runs `ControlServer`; commands use the synchronous `ControlClient`. The secret keeps out other users of
the machine and web pages in a browser.
"""

import asyncio
import http.client
import json
import os
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeAlias

from aiohttp import web

from orderlymq_operator.local.directory import Contact, DataDirectory
from orderlymq_operator.local.errors import (
    BusyError,
    FailedError,
    RefusedError,
    UnreachableError,
    in_words,
)
from orderlymq_operator.local.supervisor import RefusedChange, Supervisor
from orderlymq_operator.plan.forecast.report import Report, report_of
from orderlymq_operator.resources.manifests import reader as manifests
from orderlymq_operator.resources.manifests.combination import OtherClusterError
from orderlymq_operator.resources.manifests.problems import ManifestError, Problem
from orderlymq_runtime.pages.callers import let_loop_turn

_HOST: Final = "127.0.0.1"
_BODY_MAX: Final = 16 << 20
_TIMEOUT_S: Final = 15.0
_Work: TypeAlias = Callable[[Sequence[manifests.Manifest], bool], Awaitable[dict[str, Any]]]


class ControlServer:
    """Serves one supervisor until it is closed."""

    def __init__(self, supervisor: Supervisor, directory: DataDirectory, pid: int) -> None:
        self._supervisor = supervisor
        self._directory = directory
        self._pid = pid
        self._token = secrets.token_urlsafe(24)
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen on a free port and publish the address in the data directory."""
        application = web.Application(
            client_max_size=_BODY_MAX, middlewares=[let_loop_turn, self._guard]
        )
        application.router.add_get("/status", self._get_status)
        application.router.add_post("/apply", self._post_apply)
        application.router.add_post("/plan", self._post_plan)
        application.router.add_post("/down", self._post_down)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        await web.TCPSite(runner, _HOST, 0).start()
        self._runner = runner
        port = int(runner.addresses[0][1])
        self._directory.publish(Contact(self._pid, _HOST, port, self._token))

    async def close(self) -> None:
        """Stop listening and withdraw the address."""
        self._directory.publish(None)
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not secrets.compare_digest(given.encode(), self._token.encode()):
            return web.json_response({"error": "wrong or missing token"}, status=401)
        answer: web.StreamResponse = await handler(request)
        return answer

    async def _get_status(self, request: web.Request) -> web.Response:
        return web.json_response(self._supervisor.snapshot())

    async def _post_apply(self, request: web.Request) -> web.Response:
        async def apply(found: Sequence[manifests.Manifest], prune: bool) -> dict[str, Any]:
            return {"actions": await self._supervisor.apply(found, prune=prune)}

        failed = "the manifests are not accepted, and the cluster keeps running"
        return await self._change(request, apply, failed)

    async def _post_plan(self, request: web.Request) -> web.Response:
        async def plan(found: Sequence[manifests.Manifest], prune: bool) -> dict[str, Any]:
            return report_of(await self._supervisor.forecast(found, prune=prune))

        return await self._change(request, plan, "there is no plan")

    async def _change(self, request: web.Request, work: _Work, failed: str) -> web.Response:
        """Answer a request about manifests; *failed* is the text for an error of this machine."""
        body = await request.json()
        try:
            # In a thread: thousands of documents take seconds, and processes may die meanwhile.
            found = await asyncio.to_thread(_parsed, body["files"])
            return web.json_response(await work(found, bool(body["prune"])))
        except OtherClusterError as error:
            return web.json_response({"refusals": [str(error)]}, status=409)
        except ManifestError as error:
            return web.json_response({"error": str(error)}, status=422)
        except RefusedChange as error:
            texts = [str(refusal) for refusal in error.refusals]
            return web.json_response({"refusals": texts}, status=409)
        except OSError as error:
            return web.json_response({"error": f"{failed}: {in_words(error)}"}, status=507)

    async def _post_down(self, request: web.Request) -> web.Response:
        self._supervisor.stop()
        return web.json_response({}, status=202)


class ControlClient:
    """Talks to the supervisor of a data directory."""

    def __init__(self, directory: DataDirectory) -> None:
        self._directory = directory

    def status(self) -> dict[str, Any]:
        """Return the supervisor's snapshot.

        Raises:
            UnreachableError: no supervisor answers.
        """
        return self._call("GET", "/status", None)

    def apply(self, files: Sequence[tuple[str, str]], *, prune: bool) -> list[str]:
        """Change the desired state by *files* (name, text); return the first steps.

        Raises:
            RefusedError: with all reasons; nothing was changed.
            UnreachableError: no supervisor answers.
        """
        steps: list[str] = self._call("POST", "/apply", _body(files, prune=prune))["actions"]
        return steps

    def plan(self, files: Sequence[tuple[str, str]], *, prune: bool) -> Report:
        """Return what *files* (name, text) would do.

        Raises:
            RefusedError: they belong to another cluster.
            UnreachableError: no supervisor answers.
        """
        return self._call("POST", "/plan", _body(files, prune=prune))

    def down(self) -> None:
        """Ask the supervisor to end the cluster.

        Raises:
            UnreachableError: no supervisor answers.
        """
        self._call("POST", "/down", {})

    def _call(self, method: str, path: str, body: object) -> dict[str, Any]:
        contact = self._directory.contact()
        if contact is None:
            raise UnreachableError(
                f"no cluster runs on {self._directory}; start one with `orderlymq up -f FILE`"
            )
        connection = http.client.HTTPConnection(contact.host, contact.port, timeout=_TIMEOUT_S)
        try:
            connection.request(
                method,
                path,
                None if body is None else json.dumps(body),
                {"Authorization": f"Bearer {contact.token}", "Content-Type": "application/json"},
            )
            answer = connection.getresponse()
            return self._result(answer.status, answer.read())
        except TimeoutError as error:
            raise BusyError(
                f"the supervisor of {self._directory} (process {contact.pid}) is busy: no answer within {_TIMEOUT_S:g} s. The "
                "change may still happen; `orderlymq plan` shows what is left"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise UnreachableError(
                f"the supervisor of {self._directory} (process {contact.pid}) does not answer: {error}; "
                "start it again with `orderlymq up`"
            ) from error
        finally:
            connection.close()

    def _result(self, status: int, body: bytes) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(body)
        except ValueError:
            raise FailedError(
                f"the supervisor answered {status} without JSON; see its log"
            ) from None
        if status == 409:
            raise RefusedError("\n".join(found["refusals"]))
        if status == 422:
            raise ManifestError([Problem("", 0, "", str(found["error"]))])
        if status == 507:
            raise FailedError(str(found["error"]))
        if status >= 400:
            raise FailedError(f"the supervisor answered {status}: {found.get('error')}")
        return found


def _parsed(files: Sequence[dict[str, str]]) -> list[manifests.Manifest]:
    return [item for file in files for item in manifests.parse(file["text"], file["name"])]


def _body(files: Sequence[tuple[str, str]], *, prune: bool) -> dict[str, Any]:
    # Resolve the names: the supervisor looks for files relative to them, and has another working directory.
    named = [
        {
            "name": os.path.join(
                os.path.realpath(os.path.dirname(name) or "."), os.path.basename(name)
            ),
            "text": text,
        }
        for name, text in files
    ]
    return {"files": named, "prune": prune}
