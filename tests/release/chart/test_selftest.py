"""The program of `helm test`."""

import json
import runpy
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from kubernetes import client

from tests.release.chart.rendering import CHART

READY = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}


class BusyServer(BaseHTTPRequestHandler):
    """An API server that refuses the first request as too busy, closes the connection of the second, and answers the third."""

    asked = 0

    def do_GET(self) -> None:
        BusyServer.asked += 1
        if self.asked == 2:
            return
        self.send_response(503 if self.asked == 1 else 200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(READY).encode())


@pytest.fixture
def busy() -> Iterator[client.CustomObjectsApi]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), BusyServer)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    settings = client.Configuration(host=f"http://127.0.0.1:{server.server_port}")
    settings.retries = False
    with client.ApiClient(settings) as caller:
        yield client.CustomObjectsApi(caller)
    server.shutdown()
    serving.join()
    server.server_close()


def test_an_api_server_that_is_busy_for_a_moment_does_not_fail_the_installation(
    busy: client.CustomObjectsApi, capsys: pytest.CaptureFixture[str]
) -> None:
    """Law: a request that is repeated each second until a deadline may fail before that."""
    wait = runpy.run_path(str(CHART / "files" / "selftest.py"))["_wait_until_ready"]

    wait(busy, "shop", "release-selftest", ["clusters"])

    assert capsys.readouterr().out == "clusters/release-selftest is ready\n"


@pytest.mark.parametrize(
    ("steps", "kept"),
    [([0, 1, 2], True), ([0, 1, 0, 1, 2], True), ([0, 2], False), ([1, 0], False)],
)
def test_a_message_that_comes_again_breaks_no_order(steps: list[int], kept: bool) -> None:
    """Law: a step is in order if all earlier steps came before, however often it is delivered."""
    in_order = runpy.run_path(str(CHART / "files" / "selftest.py"))["in_order"]
    seen: dict[str, int] = {}

    assert all(in_order(seen, "a", step) for step in steps) is kept
    assert in_order(seen, "b", 0)
