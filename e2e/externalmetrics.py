"""
An adapter that serves `external.metrics.k8s.io` from the page of a broker group's leader, in a pod of a scenario.

The HPA asks it for a metric by name and labels. A metric without a row is an error and not zero, so that the HPA does
not scale then. Certificate and key are in /tls; PAGE is the address of the page.
"""

import json
import os
import ssl
import urllib.request
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from prometheus_client.parser import text_string_to_metric_families

API = "external.metrics.k8s.io/v1beta1"
PORT = 6443


def values(page: str, name: str, labels: dict[str, str]) -> list[dict[str, Any]]:
    """Return the rows of a metric that have *labels*, in the form that the HPA reads."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return [
        {
            "metricName": name,
            "metricLabels": sample.labels,
            "timestamp": now,
            "value": str(int(sample.value)),
        }
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]


def answer(path: str) -> tuple[int, dict[str, Any]]:
    """Return status and body for a path of the API."""
    url = urlsplit(path)
    words = url.path.strip("/").split("/")
    if words == ["apis", *API.split("/")]:
        return 200, {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": API,
            "resources": [],
        }
    if words[:3] != ["apis", *API.split("/")] or len(words) != 6:
        return 404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404}
    selector = parse_qs(url.query).get("labelSelector", [""])[0]
    labels = dict(each.split("=", 1) for each in selector.split(",") if each)
    with urllib.request.urlopen(os.environ["PAGE"], timeout=5) as found:
        items = values(found.read().decode(), words[5], labels)
    if not items:
        return 404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404}
    return 200, {
        "kind": "ExternalMetricValueList",
        "apiVersion": API,
        "metadata": {},
        "items": items,
    }


class Handler(BaseHTTPRequestHandler):
    """A request of the API server."""

    def do_GET(self) -> None:
        """Answer the request."""
        try:
            status, body = answer(self.path)
        except OSError as error:
            message = f"the page cannot be read: {error}"
            status, body = 503, {"kind": "Status", "apiVersion": "v1", "message": message}
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


def main() -> None:
    """Serve until the process is killed."""
    server = ThreadingHTTPServer(("", PORT), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain("/tls/tls.crt", "/tls/tls.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
