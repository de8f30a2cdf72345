"""Sign in with a token, and sign out. `orderlymq console` prints a link with a token on this machine; such a link signs in nowhere else."""

from urllib.parse import urlsplit

from aiohttp import web

from orderlymq_console.web.identity import name_of, session_of, who_looks
from orderlymq_console.web.keys import RENDERER, SESSIONS, SETTINGS
from orderlymq_console.web.sessions import COOKIE, LIFE_S


def add_sign_in(application: web.Application) -> None:
    """Register the pages."""
    application.router.add_get("/sign-in", _show)
    application.router.add_post("/sign-in", _enter)
    application.router.add_post("/sign-out", _leave)


def local_target(text: str) -> str:
    """Return where to go after signing in: a path of the console, never another site."""
    if not text.isprintable() or "\\" in text or not text.startswith("/") or text.startswith("//"):
        return "/"
    try:
        parts = urlsplit(text)
    except ValueError:
        return "/"
    return "/" if parts.scheme or parts.netloc else text


async def _show(request: web.Request) -> web.StreamResponse:
    target = local_target(request.query.get("next", "/"))
    token = request.query.get("token", "")
    if token:
        if request.app[SETTINGS].needs_account:
            # Over plain http browsers do not say which page referred to a link, and another holder of a token may have made the link.
            raise web.HTTPForbidden(
                text="this console has no sign-in link; open /sign-in and enter the token"
            )
        # Another site may lead here with its own token, so a link signs in only if no other page referred to it.
        if request.headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin"):
            return _signed_in(request, token, target)
        raise web.HTTPForbidden(text="open this link yourself, not from another page")
    return _form(request, target, is_wrong=False)


async def _enter(request: web.Request) -> web.StreamResponse:
    form = await request.post()
    token, target = form.get("token", ""), form.get("next", "/")
    if not isinstance(token, str) or not isinstance(target, str):
        raise web.HTTPBadRequest(text="a token must be text")
    return _signed_in(request, token.strip(), local_target(target))


def _signed_in(request: web.Request, token: str, target: str) -> web.StreamResponse:
    sessions, settings = request.app[SESSIONS], request.app[SETTINGS]
    account = sessions.account(token)
    if account is None:
        return _form(request, target, is_wrong=True)
    old = request.cookies.get(COOKIE)
    if old is not None:
        sessions.end(old)
    answer = web.Response(status=303, headers={"Location": target})
    answer.set_cookie(
        COOKIE,
        sessions.begin(account),
        max_age=int(LIFE_S),
        httponly=True,
        samesite="Strict",
        secure=settings.certificate is not None or name_of(request.host) in settings.https_hosts,
        path="/",
    )
    return answer


def _form(request: web.Request, target: str, *, is_wrong: bool) -> web.StreamResponse:
    return request.app[RENDERER].page(
        "signin.html",
        request,
        who_looks(request),
        status=403 if is_wrong else 200,
        target=target,
        wrong=is_wrong,
    )


async def _leave(request: web.Request) -> web.StreamResponse:
    if session_of(request) is not None:
        request.app[SESSIONS].end(request.cookies.get(COOKIE, ""))
    answer = web.Response(status=303, headers={"Location": "/"})
    answer.del_cookie(COOKIE, path="/")
    return answer
