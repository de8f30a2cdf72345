"""
Server-sent events: an open page follows the cluster.

Rules: a viewer gets the live part of its page again when it has changed, at most once a second, and a beat when it has not. The stream
ends when the viewer goes away, when it reads too slowly, or when its session ends. The number of viewers is limited. Beyond the
limit, pages stand still and say so, first those of the account with the most viewers.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

import orjson
from aiohttp import web

from orderlymq.errors import OrderlyMQError
from orderlymq_console.pages.notfound import NotThere
from orderlymq_console.web.guard import HEADERS
from orderlymq_console.web.identity import account_of, shown, who_looks
from orderlymq_console.web.keys import SETTINGS, VIEWERS
from orderlymq_console.web.viewers import VIEWERS_MAX
from orderlymq_runtime.process.waits import wait_for

_log = logging.getLogger(__name__)

EVERY_S: Final = 1.0
# A viewer that takes longer to read a page is asleep; its browser connects again by itself.
WRITE_TIMEOUT_S: Final = 10.0


async def stream(request: web.Request, render: Callable[[], Awaitable[str]]) -> web.StreamResponse:
    """Send the result of *render* each time that it changes; an error of its first call becomes the answer."""
    viewers, account = request.app[VIEWERS], who_looks(request).account
    ended = viewers.enter("" if account is None else account.name)
    if ended is None:
        raise web.HTTPServiceUnavailable(text=f"more than {VIEWERS_MAX} pages are open")
    try:
        html = await render()
        response = web.StreamResponse(
            headers={**HEADERS, "Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}
        )
        try:
            await response.prepare(request)
            await _follow(request, response, render, html, ended)
        except TimeoutError:
            # A normal end of the answer would wait until the viewer has read the rest.
            if request.transport is not None:
                request.transport.abort()
        except ConnectionError:
            pass  # the viewer has gone
    finally:
        viewers.leave(ended)
    return response


async def _follow(
    request: web.Request,
    response: web.StreamResponse,
    render: Callable[[], Awaitable[str]],
    html: str,
    ended: asyncio.Event,
) -> None:
    closing = request.app[VIEWERS].closing
    event, text, last = "live", html, ""
    while not (closing.is_set() or ended.is_set()) and _may_look(request):
        # The beat shows whether the viewer is still there, and shows the viewer that the console is.
        if (event, text) == ("live", last):
            await _send(response, "beat", "")
        else:
            await _send(response, event, text)
        if event == "live":
            last = text
        await wait_for(closing, EVERY_S)
        try:
            event, text = "live", await render()
        except (NotThere, OrderlyMQError) as error:
            event, text = "trouble", str(error)
        except Exception:
            _log.exception("%s cannot be followed any more", shown(request))
            return


def _may_look(request: web.Request) -> bool:
    return not request.app[SETTINGS].needs_account or account_of(request) is not None


async def _send(response: web.StreamResponse, event: str, text: str) -> None:
    async with asyncio.timeout(WRITE_TIMEOUT_S):
        await response.write(b"event: %s\ndata: %s\n\n" % (event.encode(), orjson.dumps(text)))
