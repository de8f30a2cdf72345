"""
The report of a driver in a pod: `/healthz`, `/readyz`, `/status`, `/metrics`, and a termination message.

The figures of a stream come from the `status.json` next to its checkpoint, which `stream` writes. This module adds
whether the driver is at work and how a run ended. Rule: requests only read.
"""

import json
import socket
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any, Final

from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from orderlymq.errors import OrderlyMQError
from orderlymq_spark.locations.location import Location
from orderlymq_spark.run.outcome import Outcome
from orderlymq_spark.specs import Pipeline

# Kubernetes keeps at most 4096 bytes of a termination message.
END_MAX_BYTES: Final = 4096
# Probes, the operator and Prometheus are three callers; other pods of the cluster's network can also connect.
CALLERS_MAX: Final = 16
THREADS_MAX: Final = 64  # including threads that still read figures after their caller left
_TIMEOUT_S: Final = 10.0
_TEXT_MAX: Final = 1000  # characters of the result or the error, to leave room for the rest
_SHORT_MAX: Final = 300  # the limit if offsets or multi-byte characters leave less room
_FIGURES: Final = (
    "last_batch",
    "rows",
    "rows_per_second",
    "lag",
    "lag_seconds",
    "offsets",
    "updated_at_ms",
)


@dataclass(slots=True)
class DriverReport:
    """The state of a driver.

    Attributes:
        ready: whether the driver is at work: Spark has started, or the work starts without it.
        phase: Starting, Running, Finished or Failed.
        result: the result text of a finished run.
        passed: false if an audit found something; None before the end.
    """

    phase: str = "Starting"
    ready: bool = False
    result: str | None = None
    passed: bool | None = None
    last_error: str | None = None
    _status: Location | None = None

    def begin(self, found: Pipeline) -> None:
        """Record which pipeline runs."""
        checkpoint = getattr(found.spec, "checkpoint", None)
        self._status = None if checkpoint is None else checkpoint / "status.json"
        self.phase = "Running"

    def end(self, outcome: Outcome) -> None:
        """Record how the run ended."""
        self.phase, self.passed = "Finished", outcome.passed
        self.result = outcome.text[:_TEXT_MAX]

    def fail(self, text: str) -> None:
        """Record why the run failed."""
        self.phase, self.last_error = "Failed", text[:_TEXT_MAX]

    def facts(self) -> dict[str, Any]:
        """Return the report as JSON types; unknown values are left out."""
        own = {
            "phase": self.phase,
            "ready": self.ready,
            "result": self.result,
            "passed": self.passed,
            "last_error": self.last_error,
        }
        every = {**self._figures(), **own}
        return {name: value for name, value in every.items() if value is not None}

    def write_end(self, path: Path) -> None:
        """Write the termination message, no longer than Kubernetes keeps."""
        facts = self.facts()
        text = _json(facts)
        if len(text) > END_MAX_BYTES:
            # With hundreds of queues the offsets do not fit; the checkpoint and the last /status have them.
            facts.pop("offsets", None)
            for name in facts.keys() & {"result", "last_error"}:
                facts[name] = facts[name][:_SHORT_MAX]
            text = _json(facts)
        path.write_bytes(text)

    def _figures(self) -> dict[str, Any]:
        try:
            found = json.loads(self._status.read_text()) if self._status is not None else {}
        except (OrderlyMQError, OSError, ValueError):
            return {}
        return {name: found[name] for name in _FIGURES if name in found}


class _Server(ThreadingHTTPServer):
    """A server with a thread per caller; one caller too many disconnects the oldest, so that probes always get through."""

    request_queue_size = CALLERS_MAX
    # The kubelet and the operator use the pod's address, which may be IPv4 or IPv6.
    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET

    def __init__(self, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("", port), handler)
        self._lock = threading.Lock()
        self._callers: dict[Any, None] = {}  # callers with an open connection
        self._served: set[Any] = set()  # callers with a thread, which may be waiting for a store

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # HTTPServer.server_bind would ask DNS for a name that is not needed.
        TCPServer.server_bind(self)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return len(self._served) < THREADS_MAX

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._served.add(request)
            self._callers[request] = None
            first = next(iter(self._callers)) if len(self._callers) > CALLERS_MAX else None
            self._callers.pop(first, None)
        if first is not None:
            # The caller's thread closes the socket; no other thread may close it during a read.
            with suppress(OSError):
                first.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._served.discard(request)
            self._callers.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # an OSError means that the caller is gone
            super().handle_error(request, client_address)


def serve(report: DriverReport, port: int) -> ThreadingHTTPServer:
    """Serve the pages in a separate thread until `shutdown`; port 0 takes a free one."""

    class Handler(BaseHTTPRequestHandler):
        timeout = _TIMEOUT_S

        def do_GET(self) -> None:
            status, kind, body = page(report, self.path)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            """Say nothing: probes come every second."""

    server = _Server(port, Handler)
    threading.Thread(target=server.serve_forever, name="status pages", daemon=True).start()
    return server


def page(report: DriverReport, path: str) -> tuple[HTTPStatus, str, bytes]:
    """Return the status, content type and body of a page."""
    match path.partition("?")[0]:
        case "/healthz":
            return HTTPStatus.OK, "text/plain", b"ok\n"
        case "/readyz":
            status = HTTPStatus.OK if report.ready else HTTPStatus.SERVICE_UNAVAILABLE
            return status, "text/plain", f"{report.phase}\n".encode()
        case "/status":
            return HTTPStatus.OK, "application/json", _json(report.facts())
        case "/metrics":
            return HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest()
    return HTTPStatus.NOT_FOUND, "text/plain", b"/healthz, /readyz, /status, /metrics\n"


def _json(facts: dict[str, Any]) -> bytes:
    return json.dumps(facts, ensure_ascii=False).encode()
