"""
Report of a driver in a pod: `/healthz`, `/readyz`, `/status`, `/metrics`, and a last word.

The figures of a stream are those of `status.json` beside its checkpoint, which `stream` writes; here is what there is
beside them: whether it is at work, and how a run ended. Rule: requests only read.
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

# Kubernetes keeps 4096 bytes of a termination message.
END_MAX_BYTES: Final = 4096
# Probes, the operator and Prometheus are three; the port is open to others of the cluster's network.
CALLERS_MAX: Final = 16
THREADS_MAX: Final = 64  # with those whose caller is gone and that read figures yet
_TIMEOUT_S: Final = 10.0
_TEXT_MAX: Final = 1000  # characters of the result or the error, so that the rest has room
_SHORT_MAX: Final = 300  # likewise where offsets or characters of many bytes leave less room
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
    """How a driver is.

    Attributes:
        ready: whether it is at work: Spark has begun, or the work begins without it.
        phase: Starting, Running, Finished or Failed.
        result: what a finished run has to say.
        passed: false when an audit has found something; None before the end.
    """

    phase: str = "Starting"
    ready: bool = False
    result: str | None = None
    passed: bool | None = None
    last_error: str | None = None
    _status: Location | None = None

    def begin(self, found: Pipeline) -> None:
        """Note what runs."""
        checkpoint = getattr(found.spec, "checkpoint", None)
        self._status = None if checkpoint is None else checkpoint / "status.json"
        self.phase = "Running"

    def end(self, outcome: Outcome) -> None:
        """Note how it ended."""
        self.phase, self.passed = "Finished", outcome.passed
        self.result = outcome.text[:_TEXT_MAX]

    def fail(self, text: str) -> None:
        """Note why it failed."""
        self.phase, self.last_error = "Failed", text[:_TEXT_MAX]

    def facts(self) -> dict[str, Any]:
        """Return all of it as JSON types; what is not known is left out."""
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
        """Leave the last word, in as many bytes as are kept."""
        facts = self.facts()
        text = _json(facts)
        if len(text) > END_MAX_BYTES:
            # Hundreds of queues: the checkpoint has their offsets, and so has the last /status.
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
    """Serves each caller in a thread; one too many ends the first, so that none keeps probes out."""

    request_queue_size = CALLERS_MAX
    # kubelet and operator come by the pod's address, of whichever family.
    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET

    def __init__(self, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("", port), handler)
        self._lock = threading.Lock()
        self._callers: dict[Any, None] = {}  # whose connection is open
        self._served: set[Any] = set()  # who has a thread, that waits for a store perhaps

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # HTTPServer's own asks DNS for a name that nobody needs.
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
            # Its thread closes it, which nobody else may do while it reads.
            with suppress(OSError):
                first.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._served.discard(request)
            self._callers.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # whose caller is gone
            super().handle_error(request, client_address)


def serve(report: DriverReport, port: int) -> ThreadingHTTPServer:
    """Serve the pages in a thread of their own until `shutdown`; port 0 takes a free one."""

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
    """Return status, content type and body of a page."""
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
