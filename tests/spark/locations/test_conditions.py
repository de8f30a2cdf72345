"""Stores of Google and Azure: requests use the address and the environment, and a commit is conditional."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest

from orderlymq_spark.locations.addresses import location
from orderlymq_spark.locations.objects import store_of

Seen = list[tuple[str, dict[str, str]]]


@pytest.fixture
def port(seen: Seen) -> Iterator[int]:
    """Return the port of a store that accepts every put."""

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            seen.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
            self.send_response(200 if "x-ms-version" not in self.headers else 201)
            self.send_header("ETag", '"1"')
            self.send_header("Last-Modified", "Fri, 27 Nov 2026 21:00:00 GMT")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            """Write no log."""

    store_of.cache_clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()
    store_of.cache_clear()


@pytest.fixture
def seen() -> Seen:
    return []


def test_a_commit_in_azures_store_is_conditional(
    port: int, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Container and account come from the address, the key from the environment."""
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"http://127.0.0.1:{port}/account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")
    place = location("abfss://lake@account.dfs.core.windows.net/archive") / "1.json"

    assert place.create("x")
    place.write("y")

    (path, first), (_, second) = seen
    assert path == "/account/lake/archive/1.json"
    assert first["authorization"].startswith("SharedKey account:")
    assert (first.get("if-none-match"), second.get("if-none-match")) == ("*", None)


def test_a_commit_in_googles_store_is_conditional(
    port: int, seen: Seen, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Generation 0 means that no object exists."""
    account = {"gcs_base_url": f"http://127.0.0.1:{port}", "disable_oauth": True}
    names = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
    (tmp_path / "account.json").write_text(json.dumps({**account, **names}))
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(tmp_path / "account.json"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")  # permits a store without TLS
    place = location("gs://lake/archive") / "1.json"

    assert place.create("x")
    place.write("y")

    (path, first), (_, second) = seen
    assert unquote(path) == "/lake/archive/1.json"
    condition = "x-goog-if-generation-match"
    assert (first.get(condition), second.get(condition)) == ("0", None)
