"""
Requests to the HTTP pages that no browser sends. The law: an answer below 500 (503 says that a process is not ready)
or a closed connection, and the process goes on.
"""

import random
import re
import socket
from typing import Final

from tests.hostile import values

PATHS: Final = (
    "/healthz",
    "/readyz",
    "/metrics",
    "/status",
    "/",
    "/nowhere",
    "*",
    "/../../etc/passwd",
)
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
_VERSIONS: Final = ("HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/9.9", "")
_STATUS: Final = re.compile(rb"^HTTP/1\.[01] (\d{3})")


def page(seed: int, number: int) -> bytes:
    """Return the bytes of one request."""
    rng = random.Random((seed << 40) + number)
    path = rng.choice(PATHS) + rng.choice(
        ("", "", "?" + values.text(rng), "/" * 9_000, "%00%ff%zz")
    )
    head = f"{rng.choice(_METHODS)} {path} {rng.choice(_VERSIONS)}\r\nHost: x\r\n"
    for _ in range(rng.choice((0, 1, 3, 200))):
        head += f"{rng.choice(('X', 'Content-Length', 'Transfer-Encoding', 'Range'))}: "
        head += rng.choice(("chunked", "-1", "9" * 30, "bytes=9-1", values.text(rng))) + "\r\n"
    found = (head + "\r\n").encode(errors="replace") + rng.choice((b"", b"x", b"ffffffff\r\n"))
    return found[: rng.randrange(len(found))] if rng.random() < 0.1 else found


def ask(port: int, request: bytes) -> int | None:
    """Return the status of the answer, None when the other side says nothing or hangs up."""
    try:
        with socket.create_connection(("127.0.0.1", port), 5.0) as raw:
            raw.sendall(request)
            raw.settimeout(0.2)
            answer = raw.recv(4_096)
    except OSError:
        return None
    match = _STATUS.match(answer)
    return None if match is None else int(match[1])
