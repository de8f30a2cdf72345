"""
Checks before every page: the host that is called, the account, the origin of a change, and the headers of answers.

Rules: if the header Host holds a name that the console was not given, the request is refused. Otherwise a foreign page could reach
the console under its own name (DNS rebinding). A change needs a session, the proof in its form, and the console's own origin. A page
runs only scripts and styles from the console's own files, and no other site can show it in a frame.
"""

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final
from urllib.parse import urlencode, urlsplit

import orjson
from aiohttp import web
from aiohttp.http import HttpProcessingError

from orderlymq.errors import OrderlyMQError
from orderlymq_console.pages.notfound import NotThere
from orderlymq_console.parameters import BadParameter
from orderlymq_console.web.identity import (
    SAFE_METHODS,
    account_of,
    name_of,
    session_of,
    shown,
    who_looks,
)
from orderlymq_console.web.keys import RENDERER, SETTINGS
from orderlymq_console.web.sessions import TooManyWrong
from orderlymq_protocol.hosts import ip_of

_log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}
#: How long a form may take to arrive; browsers send a form of 64 KiB immediately.
FORM_S: Final = 10.0
_FORM: Final = "application/x-www-form-urlencoded"
# Pages that need no account.
_OPEN: Final = ("/static/", "/sign-in", "/healthz")


@web.middleware
async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Let a request through, or answer why it is refused. An error of a page becomes an answer with a sentence."""
    try:
        response = await _guarded(request, handler)
    except web.HTTPException as error:
        if error.status in (301, 302, 303):
            _add_headers(error)
            raise
        response = refuse(request, error.status, error.text or error.reason)
    except NotThere as error:
        response = refuse(request, 404, f"{error}")
    except BadParameter as error:
        response = refuse(request, 400, f"{error}")
    except TooManyWrong:
        response = refuse(request, 429, "too many wrong tokens in the last minute; wait a minute")
    except TimeoutError:
        response = refuse(request, 503, "the cluster did not answer in time; try again")
    except OrderlyMQError as error:
        response = refuse(request, 503, f"the cluster cannot be reached now: {error}")
    except Exception:
        _log.exception("%s failed", shown(request))
        response = refuse(request, 500, "the console failed; its log has the error")
    if not response.prepared:
        _add_headers(response)
    return response


async def _guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
    settings = request.app[SETTINGS]
    if not is_known_host(request.host, settings.hosts + settings.https_hosts):
        raise web.HTTPMisdirectedRequest(
            text="the console does not answer under this name; open it by its address, or start it with "
            "--host NAME or --https-host NAME"
        )
    if request.method not in SAFE_METHODS:
        await _check_change(request)
    is_open = request.path.startswith(_OPEN)
    if settings.needs_account and not is_open and account_of(request) is None:
        if wants_json(request) or request.method not in SAFE_METHODS:
            raise web.HTTPUnauthorized(text="sign in, or pass a token: Authorization: Bearer TOKEN")
        raise web.HTTPSeeOther(f"/sign-in?{urlencode({'next': request.path_qs})}")

    return await handler(request)


def is_known_host(host: str, names: tuple[str, ...]) -> bool:
    """Return whether the header Host is an address, localhost, or one of *names*; the port does not matter."""
    name = name_of(host)
    return name == "localhost" or name in names or ip_of(name) is not None


async def _check_change(request: web.Request) -> None:
    """Refuse a change that does not come from a form of the console itself."""
    origin = request.headers.get("Origin")
    site = request.headers.get("Sec-Fetch-Site", "same-origin")
    if site not in ("same-origin", "none"):
        raise web.HTTPForbidden(text="this change comes from another site")
    if origin is not None and _host_of(origin) != request.host:
        raise web.HTTPForbidden(
            text=f"this change comes from another site: from {_ascii(origin)}, to {_ascii(request.host)}; a proxy before "
            "the console must pass on the header Host as the browser sends it"
        )
    if request.body_exists and not _is_form(request):
        raise web.HTTPUnsupportedMediaType(
            text=f"a change must be a form of type {_FORM} in UTF-8, neither multipart nor compressed"
        )
    form = await _form(request)
    if request.path == "/sign-in":
        return
    session = session_of(request)
    if session is None:
        raise web.HTTPUnauthorized(text="sign in to change something")
    given = form.get("proof", "")
    if not isinstance(given, str) or not hmac.compare_digest(
        given.encode(errors="replace"), session.proof.encode()
    ):
        raise web.HTTPForbidden(
            text="the form is too old, or not a form of the console; load it again"
        )


def _host_of(origin: str) -> str | None:
    """Return the host and port of an origin; None if the text is not an origin."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def _ascii(text: str) -> str:
    """Return a text that can be sent, because headers may hold bytes that are not text."""
    return text.encode("ascii", "backslashreplace").decode()


def _is_form(request: web.Request) -> bool:
    """Return whether the body has the type that a browser sends for a form of the console."""
    is_utf8 = (request.charset or "utf-8").lower() == "utf-8"
    return is_utf8 and request.content_type == _FORM and "Content-Encoding" not in request.headers


async def _form(request: web.Request) -> Mapping[str, object]:
    """Read the form of a change, which the request keeps; nothing else reads a body."""
    try:
        async with asyncio.timeout(FORM_S):
            return await request.post()
    except TimeoutError:
        raise web.HTTPRequestTimeout(
            text=f"the form did not arrive within {FORM_S:g} s; send it again"
        ) from None
    except (ValueError, HttpProcessingError, web.RequestPayloadError, ConnectionError):
        raise web.HTTPBadRequest(text="the form cannot be read; send it again") from None


def wants_json(request: web.Request) -> bool:
    """Return whether a program asks: `/api` and `/events` answer in JSON, also with errors."""
    return request.path.startswith(("/api/", "/events/"))


def refuse(request: web.Request, status: int, text: str) -> web.Response:
    """Return an answer that says what is wrong, as JSON or as a page."""
    if wants_json(request):
        return web.Response(
            status=status, body=orjson.dumps({"error": text}), content_type="application/json"
        )
    return request.app[RENDERER].page(
        "refusal.html", request, who_looks(request), status=status, text=text
    )


def _add_headers(response: web.StreamResponse) -> None:
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
