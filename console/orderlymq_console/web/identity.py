"""Identify the caller: the session of a browser's cookie or the account of a program's token, and the host name that was called."""

from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

from orderlymq_console.settings import Account
from orderlymq_console.web.keys import SESSIONS
from orderlymq_console.web.renderer import Who
from orderlymq_console.web.sessions import COOKIE, Session, TooManyWrong

SAFE_METHODS: Final = ("GET", "HEAD")
_SHOWN_MAX: Final = 200


def name_of(host: str) -> str:
    """Return the name or address in the header Host, without the port; empty if there is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def session_of(request: web.Request) -> Session | None:
    """Return the session of a request; None if it has none."""
    return request.app[SESSIONS].get(request.cookies.get(COOKIE, ""))


def account_of(request: web.Request) -> Account | None:
    """Return the account that asks. A token in the header Authorization, which programs send, does not permit a change.

    Raises:
        TooManyWrong: The token is wrong, and too many wrong ones came in the last minute.
    """
    session = session_of(request)
    if session is not None:
        return session.account
    kind, _, token = request.headers.get("Authorization", "").partition(" ")
    if kind != "Bearer" or request.method not in SAFE_METHODS:
        return None
    return request.app[SESSIONS].account(token.strip())


def who_looks(request: web.Request) -> Who:
    """Return the viewer of a page."""
    session = session_of(request)
    if session is not None:
        return Who(session.account, session.proof)
    try:
        return Who(account_of(request))
    except TooManyWrong:
        return Who()


def shown(request: web.Request) -> str:
    """Return a request as a log may show it: escaped as it came, and short."""
    return f"{request.method} {request.rel_url.raw_path[:_SHOWN_MAX]}"
