"""
Requests to the HTTP pages that no browser sends.

The law: the answer is below 500 (except 503, which says that a process is not ready) or the connection is closed, and
the process goes on. Paths come from the routers and parameters from the console's code, so a new one is covered
without being named here.
"""

import ast
import functools
import random
import re
import socket
from importlib.resources import files
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote, urlencode

from aiohttp import web
from prometheus_client import CollectorRegistry

from orderlymq_console.app import Console
from orderlymq_console.parameters import Parameters
from orderlymq_console.settings import ConsoleSettings
from orderlymq_console.web.sessions import COOKIE
from orderlymq_runtime.pages.server import HealthServer
from tests.hostile import values
from tests.hostile.shapes import BROKER, CLIENTS, GROUPS, TOPICS

_NOT_SERVED: Final = ("/", "/nowhere", "*", "/../../etc/passwd")
_METHODS: Final = (
    "GET",
    "GET",
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "DELETE",
    "OPTIONS",
    "CONNECT",
    "get",
    "X" * 300,
)
_NAMES: Final = (
    *(*TOPICS, *GROUPS, *CLIENTS, f"{BROKER}:0", "0", "1", "skip", "retry", "on", "earliest"),
    "2026-01-31T12:00:00",
)
_FORM: Final = "application/x-www-form-urlencoded"
_CONSOLE_HEADERS: Final = (
    *("Authorization", "Origin", "Sec-Fetch-Site", "Accept", "Accept-Encoding", "Content-Encoding"),
    *("If-None-Match", "Last-Event-ID", "X-Forwarded-For", "Referer", "Cookie"),
)
_VERSIONS: Final = ("HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/9.9", "")
_STATUS: Final = re.compile(rb"^HTTP/1\.[01] (\d{3})")


def page(seed: int, number: int) -> bytes:
    """Return the bytes of one request."""
    rng = random.Random((seed << 40) + number)
    path = rng.choice(served_paths() + _NOT_SERVED) + rng.choice(
        ("", "", "?" + values.text(rng), "/" * 9_000, "%00%ff%zz")
    )
    head = f"{rng.choice(_METHODS)} {path} {rng.choice(_VERSIONS)}\r\nHost: x\r\n"
    head += _headers(rng, rng.choice((0, 1, 3, 200)))
    found = (head + "\r\n").encode(errors="replace") + rng.choice((b"", b"x", b"ffffffff\r\n"))
    return _cut(rng, found)


def _headers(rng: random.Random, count: int) -> str:
    head = ""
    for _ in range(count):
        head += f"{rng.choice(('X', 'Content-Length', 'Transfer-Encoding', 'Range'))}: "
        head += rng.choice(("chunked", "-1", "9" * 30, "bytes=9-1", values.text(rng))) + "\r\n"
    return head


def _cut(rng: random.Random, request: bytes) -> bytes:
    return request[: rng.randrange(len(request))] if rng.random() < 0.1 else request


@functools.cache
def served_paths() -> tuple[str, ...]:
    """Return the paths of the pages that every process has."""
    server = HealthServer(
        "", 0, ready=lambda: (True, ""), status=dict, registry=CollectorRegistry()
    )
    return tuple(dict.fromkeys(path for _, path in _routes(server.application())))


def _routes(application: web.Application) -> list[tuple[str, str]]:
    return [
        (route.method, route.resource.canonical)
        for route in application.router.routes()
        if route.resource is not None
    ]


# -- the console -----------------------------------------------------------------------------------


class Session(NamedTuple):
    """A signed-in user's session: the content of the cookie, and of each form's proof."""

    cookie: str
    proof: str


@functools.cache
def console_routes() -> tuple[tuple[str, str], ...]:
    """Return the methods and paths of the console; names in braces stand for any text."""
    return tuple(_routes(Console(ConsoleSettings(name_servers="127.0.0.1:1")).application))


@functools.cache
def console_parameters() -> tuple[str, ...]:
    """Return the parameters that the console reads: the first arguments of the calls of `Parameters`."""
    readers = {name for name in vars(Parameters) if not name.startswith("_")}
    root = Path(str(files("orderlymq_console")))
    return tuple(
        sorted(
            {
                call.args[0].value
                for path in root.rglob("*.py")
                for call in ast.walk(ast.parse(path.read_text()))
                if isinstance(call, ast.Call)
                and isinstance(call.func, ast.Attribute)
                and call.func.attr in readers
                and isinstance(call.func.value, ast.Name)
                and call.func.value.id == "parameters"
                and call.args
                and isinstance(call.args[0], ast.Constant)
                and isinstance(call.args[0].value, str)
            }
        )
    )


def console_request(seed: int, number: int, session: Session) -> bytes:
    """Return the bytes of one request to the console, mostly by a signed-in user."""
    rng = random.Random((seed << 40) + number)
    changes = [each for each in console_routes() if each[0] == "POST"]
    method, path = rng.choice(changes if rng.random() < 0.2 else console_routes())
    path = re.sub(r"\{\w+\}", lambda _: quote(_text(rng), safe=rng.choice(("", "/%"))), path)
    chosen = rng.sample(console_parameters(), rng.choice((0, 1, 1, 2, 2, 4, 8)))
    fields = [(name, _text(rng)) for name in chosen]
    if method == "POST" and path != "/sign-out":
        fields.append(("proof", session.proof if rng.random() < 0.8 else _text(rng)))
    fields += rng.choices([*fields, ("x", _text(rng))], k=rng.choice((0, 0, 0, 1, 3)))
    told = urlencode(fields, errors="surrogatepass")
    method = method if rng.random() < 0.95 else rng.choice(_METHODS)
    is_form = method == "POST" and rng.random() < 0.9
    target = path if is_form else f"{path}?{told}"
    head = (
        f"{method} {target} HTTP/1.1\r\nHost: {rng.choice(('localhost',) * 9 + (_line(rng),))}\r\n"
    )
    cookie = session.cookie if rng.random() < 0.8 else _line(rng)
    head += f"Cookie: {COOKIE}={cookie}; {_line(rng)}={_line(rng)}\r\n"
    for name in rng.sample(_CONSOLE_HEADERS, rng.choice((0, 0, 0, 1, 2))):
        head += f"{name}: {_line(rng)}\r\n"
    if rng.random() < 0.1:
        head += _headers(rng, rng.choice((1, 3, 200)))
    body = _spoiled_form(rng, told.encode()) if is_form else b""
    if is_form:
        length = len(body) if rng.random() < 0.9 else rng.choice(("-1", "9" * 30, len(body) + 1))
        head += f"Content-Type: {_FORM if rng.random() < 0.9 else _line(rng)}\r\nContent-Length: {length}\r\n"
    return _cut(rng, (head + "Connection: close\r\n\r\n").encode(errors="replace") + body)


def _text(rng: random.Random) -> str:
    if rng.random() < 0.5:
        return rng.choice(_NAMES)
    # Longer lines are refused before a page sees them.
    return values.text(rng, rng.choice((str, int)))[: rng.choice((60, 1_025, 1 << 16))]


def _line(rng: random.Random) -> str:
    """Return a text that ends no header."""
    return values.text(rng).replace("\r", "").replace("\n", "")


def _spoiled_form(rng: random.Random, form: bytes) -> bytes:
    match rng.randrange(12):
        case 0:
            return form + rng.choice(
                (b"&x=" + b"x" * 70_000, b"&a" * 20_000, b"&stamp=" + b"s" * 49_000)
            )
        case 1:
            return form.replace(b"%", b"%%")
        case 2:
            return rng.randbytes(200) + form
        case _:
            return form


def ask(port: int, request: bytes) -> int | None:
    """Return the status of the answer, None if the other side does not answer or hangs up."""
    try:
        with socket.create_connection(("127.0.0.1", port), 5.0) as raw:
            raw.sendall(request)
            raw.settimeout(0.2)
            answer = raw.recv(4_096)
    except OSError:
        return None
    match = _STATUS.match(answer)
    return None if match is None else int(match[1])
