"""
An S3 server for tests, and a proxy in front of it that is slow, busy, cuts connections and loses answers.

The server is moto, in its own environment that `make test-spark` makes; ORDERLYMQ_S3 names the endpoint of another
server with a bucket `tests`. Rule: only the proxy knows of the faults; the code under test knows only an endpoint.
"""

import http.client
import os
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final, Literal, Self

from tests.ports import free_ports

BUCKET: Final = "tests"
PROGRAM: Final = Path(sys.prefix) / "s3" / "bin" / "moto_server"
ANOTHER: Final = "ORDERLYMQ_S3"
_START_TIMEOUT_S: Final = 60.0
_SLOW_S: Final = 0.3

#: The fate of a request. "served" and "slow": it is carried out. "busy": it is refused with 503. "answer lost": it is
#: carried out, but answered with 503. "cut": it is carried out, and its connection is cut. "reset": it is not carried
#: out, and its connection is reset. "refused": with 400, as a request that is too large. "claimed": it is not carried
#: out, but answered with an error after the status 200, as S3 may answer a copy. "conflict": with 409, as during another
#: conditional put.
Fate = Literal[
    "served", "slow", "busy", "answer lost", "cut", "reset", "refused", "claimed", "conflict"
]
_NOT_CARRIED_OUT: Final[dict[Fate, tuple[int, bytes]]] = {
    "busy": (503, b"<Error><Code>SlowDown</Code></Error>"),
    "refused": (400, b"<Error><Code>InvalidRequest</Code></Error>"),
    "claimed": (200, b"<Error><Code>RequestTimeout</Code></Error>"),
    "conflict": (409, b"<Error><Code>ConditionalRequestConflict</Code></Error>"),
}


@dataclass(frozen=True, slots=True)
class Request:
    """A request that the proxy sees."""

    method: str
    path: str
    conditional: bool
    copies: bool

    def __str__(self) -> str:
        kind = "COPY" if self.copies else self.method
        return f"{kind}{'?' if self.conditional else ''} {self.path.partition('?')[0]}"


def serve_all(_: Request) -> Fate:
    """Decide for every request that it is served."""
    return "served"


@dataclass
class S3:
    """The server behind the proxy; the context manager ends both.

    Attributes:
        decide: called for each request; returns its fate.
        seen: the requests, in order.
    """

    port: int
    decide: Callable[[Request], Fate] = serve_all
    seen: list[Request] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._process: subprocess.Popen[bytes] | None = None
        backend = os.environ.get(ANOTHER, "")
        if not backend:
            (port,) = free_ports(1)
            backend = f"http://127.0.0.1:{port}"
            self._process = subprocess.Popen(
                [str(PROGRAM), "-H", "127.0.0.1", "-p", str(port)],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        self.backend = backend.removeprefix("http://")
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), _handler(self))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self._make_bucket()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _make_bucket(self) -> None:
        end = time.monotonic() + _START_TIMEOUT_S
        while self._process is not None:
            connection = http.client.HTTPConnection(self.backend, timeout=10)
            try:
                connection.request("PUT", f"/{BUCKET}")
                assert connection.getresponse().status == 200
                return
            except OSError:
                assert time.monotonic() < end, f"{PROGRAM} does not start"
                time.sleep(0.05)
            finally:
                connection.close()

    def reset(self) -> None:
        """Serve all requests again, and forget the former ones."""
        self.decide = serve_all
        self.seen = []


def environment(port: int) -> dict[str, str]:
    """Return the environment variables that direct S3 tools to the server."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "testing1",
        "AWS_SECRET_ACCESS_KEY": "testing1",
        "AWS_REGION": "us-east-1",
    }


def _reset(connection: socket.socket) -> None:
    """End a connection with a reset."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    os.close(connection.detach())


def _handler(server: S3) -> type[BaseHTTPRequestHandler]:  # noqa: C901 - a class, not a function
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # otherwise a body waits 40 ms for the answer to its head

        def _serve(self) -> None:
            names = {name.lower() for name in self.headers}
            request = Request(
                self.command,
                re.sub(rf"^/{BUCKET}/?", "", self.path),
                "if-none-match" in names,
                "x-amz-copy-source" in names,
            )
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            server.seen.append(request)
            fate = server.decide(request)
            if fate == "cut":
                self.close_connection = True
                return
            if fate == "reset":
                self.close_connection = True
                _reset(self.connection)
                return
            if fate == "slow":
                time.sleep(_SLOW_S)
            if fate in _NOT_CARRIED_OUT:
                status, content = _NOT_CARRIED_OUT[fate]
                headers: dict[str, str] = {}
            else:
                status, headers, content = self._forwarded(body)
            if fate == "answer lost":
                headers, (status, content) = {}, _NOT_CARRIED_OUT["busy"]
            self._answer(status, headers, content)

        def _forwarded(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
            with closing(http.client.HTTPConnection(server.backend, timeout=60)) as connection:
                connection.putrequest(
                    self.command, self.path, skip_host=True, skip_accept_encoding=True
                )
                for name, value in self.headers.items():
                    connection.putheader(name, value)
                connection.endheaders(body)
                answer = connection.getresponse()
                return answer.status, dict(answer.getheaders()), answer.read()

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve  # noqa: N815 - the base class's names

        def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
            self.send_response_only(status)
            length = str(len(content))
            for name, value in headers.items():
                if name.lower() == "content-length":
                    length = value if self.command == "HEAD" else length
                elif name.lower() not in ("transfer-encoding", "connection"):
                    self.send_header(name, value)
            self.send_header("Content-Length", length)
            self.end_headers()
            if self.command != "HEAD":  # the client would take a body for the next answer
                with suppress(OSError):
                    self.wfile.write(content)

        def handle(self) -> None:
            with suppress(ConnectionError):  # the client was killed
                super().handle()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            pass

    return Handler
