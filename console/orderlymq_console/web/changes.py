"""
Changes: a page that shows what will happen, and the form that does it.

Rules: the account needs the right to act. The confirmation names the object. The form carries the stamp of what was shown. The audit log
records each change before it begins and when it has ended; the console waits for that before it ends. A change that fails midway
reports how much of it was done. Each consumer group has one change at a time: a second one is planned when the first has ended.
"""

import asyncio
import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from aiohttp import web

from orderlymq.errors import OrderlyMQError
from orderlymq.ownedtasks import reason
from orderlymq_console.actions.plan import Changed, Done, Plan
from orderlymq_console.actions.redrive import plan_redrive, redrive
from orderlymq_console.actions.release import plan_release, release
from orderlymq_console.actions.reset import plan_reset, reset
from orderlymq_console.cluster import ClusterReader
from orderlymq_console.models import AuditPage
from orderlymq_console.parameters import STAMP_LENGTH_MAX, Parameters
from orderlymq_console.settings import Account
from orderlymq_console.web.identity import account_of, session_of, who_looks
from orderlymq_console.web.keys import AUDIT, READER, RENDERER, SETTINGS
from orderlymq_protocol.plurals import counted
from orderlymq_runtime.sockets.addresses import plain_host

Planner = Callable[[ClusterReader, Parameters], Awaitable[Plan]]

_TIMEOUT_S: Final = 15.0
# A part of the time that the process has for its shutdown, after the part for its other callers.
_CLOSE_MAX_S: Final = 5.0


class _Action(NamedTuple):
    """A change: its address, its planner, the function that does it and counts, and the words for one and for many parts done."""

    name: str
    plan: Planner
    do: Callable[[ClusterReader, Plan, Done], Awaitable[int]]
    one: str
    many: str


_ACTIONS: Final = (
    _Action("release", plan_release, release, "lane or key released", "lanes or keys released"),
    _Action("reset", plan_reset, reset, "queue moved", "queues moved"),
    _Action("redrive", plan_redrive, redrive, "dead letter sent", "dead letters sent"),
)


class Changes:
    """The changes under way, one at a time for each consumer group. They outlive their requests; `close` ends them."""

    def __init__(self) -> None:
        self._locks: MutableMapping[str, asyncio.Lock] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[web.StreamResponse]] = set()

    async def run(
        self, group: str, change: Callable[[], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Run a change and return its answer. Once begun, it runs to its end even if the browser goes away; the audit log has the result."""
        lock = self._locks.setdefault(group, asyncio.Lock())

        async def in_turn() -> web.StreamResponse:
            async with lock:
                return await change()

        task = asyncio.create_task(in_turn(), name=f"change of {group}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Wait a moment until all changes have ended, and cancel those that have not."""
        if not self._tasks:
            return
        _, left = await asyncio.wait(self._tasks, timeout=_CLOSE_MAX_S)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


def add_changes(application: web.Application, changes: Changes) -> None:
    """Register the pages."""
    for action in _ACTIONS:
        path = f"/groups/{{group}}/{action.name}"
        application.router.add_get(path, _preview(action.plan))
        application.router.add_post(path, _act(action, changes))
    application.router.add_get("/audit", _audit)
    application.router.add_get("/api/audit", _audit_json)


def _preview(planner: Planner) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(request: web.Request) -> web.StreamResponse:
        _acting(request)
        # A stamp is taken from a form only: a stamp in an address could make the preview show what somebody else has written into it.
        query = {name: value for name, value in request.query.items() if name != "stamp"}
        parameters = Parameters({**query, **request.match_info})
        async with asyncio.timeout(_TIMEOUT_S):
            plan = await planner(request.app[READER], parameters)
        return _shown(request, plan)

    return handle


def _act(
    action: _Action, changes: Changes
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(request: web.Request) -> web.StreamResponse:
        account = _acting(request)
        form = {
            name: value for name, value in (await request.post()).items() if isinstance(value, str)
        }
        parameters = Parameters({**form, **request.match_info})
        change = partial(_change, request, account, action, parameters)
        return await changes.run(request.match_info["group"], change)

    return handle


async def _change(
    request: web.Request, account: Account, action: _Action, parameters: Parameters
) -> web.StreamResponse:
    async with asyncio.timeout(_TIMEOUT_S):
        plan = await action.plan(request.app[READER], parameters)
    if not _is_same(parameters.raw("confirm"), plan.name):
        return _shown(request, plan, f"The confirmation must name {plan.name}.", 400)
    if not _is_same(parameters.text("stamp", length_max=STAMP_LENGTH_MAX), plan.stamp):
        text = "The state has changed since it was shown. Nothing was done; look again."
        return _shown(request, plan, text, 409)
    if plan.consent and not parameters.flag("consent"):
        return _shown(
            request, plan, "Nothing was done: tick the box to agree to the text next to it.", 400
        )
    audit = request.app[AUDIT]
    thing = {"group": plan.group, "topic": plan.topic, "name": plan.name, "stamp": plan.stamp}
    thing = plan.form | thing | ({"consent": plan.consent} if plan.consent else {})
    who = (account.name, plain_host(request.remote or ""))
    audit.begin(*who, plan.action, thing)
    done = Done()
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            count = await action.do(request.app[READER], plan, done)
    except Changed as error:
        lost = audit.end(*who, plan.action, thing, f"refused: {error}")
        return _shown(request, plan, f"{error}.{f' But {lost}.' if lost else ''}", 409)
    except (OrderlyMQError, TimeoutError) as error:
        text = _failure(action, plan, done, f"{error}" or "no answer in time")
        lost = audit.end(*who, plan.action, thing, f"failed: {text}")
        if not done.count:
            raise
        text += f". Check the state before you continue.{f' But {lost}.' if lost else ''}"
        return _shown(request, plan, f"Done in part: {text}", 503)
    except BaseException as error:  # also when the console ends
        text = _failure(action, plan, done, reason(error))
        audit.end(*who, plan.action, thing, f"failed: {text}")
        raise
    outcome = counted(count, action.one, action.many)
    lost = audit.end(*who, plan.action, thing, f"done: {outcome}")
    return request.app[RENDERER].page(
        "done.html", request, who_looks(request), plan=plan, outcome=outcome, lost=lost
    )


def _failure(action: _Action, plan: Plan, done: Done, why: str) -> str:
    """Say why a change ended early, and how much of it was done. The part that failed may have been done, too."""
    if not done.count:
        return why
    return (
        f"{done.count} of {plan.parts} {action.many}; the outcome of the others is unknown: {why}"
    )


def _acting(request: web.Request) -> Account:
    """Return the account of the session; refuse the request if the account may not act."""
    if request.app[SETTINGS].read_only:
        raise web.HTTPForbidden(text="this console is read-only; use the orderlymq command")
    session = session_of(request)
    if session is None:
        raise web.HTTPUnauthorized(text="sign in to change something")
    if session.account.right != "act":
        raise web.HTTPForbidden(
            text=f"the account {session.account.name} may only view; to change something, its right must be act"
        )
    return session.account


def _is_same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), expected.encode(errors="replace"))


def _shown(request: web.Request, plan: Plan, wrong: str = "", status: int = 200) -> web.Response:
    return request.app[RENDERER].page(
        "plan.html", request, who_looks(request), status=status, plan=plan, wrong=wrong
    )


async def _audit(request: web.Request) -> web.StreamResponse:
    page = AuditPage(lines=request.app[AUDIT].lines if account_of(request) is not None else ())
    return request.app[RENDERER].page("audit.html", request, who_looks(request), page=page)


async def _audit_json(request: web.Request) -> web.StreamResponse:
    if account_of(request) is None:
        raise web.HTTPUnauthorized(text="sign in to read the audit log")
    page = AuditPage(lines=request.app[AUDIT].lines)
    return web.Response(text=page.model_dump_json(by_alias=True), content_type="application/json")
