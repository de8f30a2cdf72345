"""A cluster of real processes that takes no plain connections and nobody without an account."""

import json
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from tests.operator.local.conftest import directory, ports
from tests.operator.local.manifests import text
from tests.runtime.certificates import make_authority, make_certificate

__all__ = ["directory", "ports"]  # fixtures

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(200)]


def _orderlymq(*arguments: str) -> str:
    command = [sys.executable, "-c", "from orderlymq.cli import main; main()", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def _secured(port: int, folder: Path) -> str:
    files = make_certificate(make_authority(folder), "replica")
    tls = {
        "mode": "Enforcing",
        "certificateFile": str(files.certificate),
        "keyFile": str(files.key),
        "caFile": str(files.ca),
        "clientAuth": "Required",
    }
    plain = text(port)
    head, _, tail = plain.partition("  replicasPerGroup: 3\n")
    more = f"  replicasPerGroup: 3\n  tls: {json.dumps(tls)}\n  config: {{aclEnable: true}}\n"
    return head + more + tail


def _served_by(port: int) -> str:
    """Return the serial number of the certificate at *port*."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", port), timeout=30) as plain,
        context.wrap_socket(plain) as encrypted,
    ):
        certificate = encrypted.getpeercert(binary_form=True)
    assert certificate is not None
    return certificate.hex()


def _is_refused_plain(port: int, words: bytes) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(words)
        try:
            return connection.recv(1) == b""
        except ConnectionResetError:
            return True


def test_a_running_cluster_is_encrypted_and_opened_again(
    directory: Path, ports: int, tmp_path: Path
) -> None:
    """Law: a running cluster is encrypted and opened again step by step;
    after each step all clients of that mode are served.
    """
    manifest = tmp_path / "cluster.yaml"
    secured = _secured(ports, tmp_path / "tls")
    place = ("--data-dir", str(directory), "--output", "json")
    manifest.write_text(secured.replace('"Enforcing"', '"Disabled"'))
    _orderlymq("up", "-f", str(manifest), "--detach", *place)
    try:
        for mode in ("Permissive", "Enforcing", "Permissive", "Disabled"):
            manifest.write_text(secured.replace('"Enforcing"', f'"{mode}"'))
            _orderlymq("apply", "-f", str(manifest), *place)

            verdict = json.loads(_orderlymq("demo", "--no-kill", "--seconds", "3", *place))
            assert (verdict["kept"], verdict["findings"]) == (True, [])
            assert verdict["counts"]["acknowledged"] == verdict["counts"]["sent"] > 0
            if mode != "Disabled":
                assert _served_by(ports) == _served_by(ports + 40 + 1)
    finally:
        _orderlymq("down", *place)


def test_replicas_pages_and_demo_work_where_tls_and_accounts_are_enforced(
    directory: Path, ports: int, tmp_path: Path
) -> None:
    """Law: replicas, pages and demo work with enforced TLS and accounts,
    after the leader's death and with a new CA's certificates.
    """
    manifest = tmp_path / "cluster.yaml"
    manifest.write_text(_secured(ports, tmp_path / "tls"))
    place = ("--data-dir", str(directory), "--output", "json")
    raft, http = ports + 20 + 1, ports + 40 + 1

    _orderlymq("up", "-f", str(manifest), "--detach", *place)
    try:
        first = json.loads(_orderlymq("demo", "--seconds", "4", *place))
        assert all(_is_refused_plain(port, b"GET / HTTP/1.0\r\n\r\n") for port in (raft, http))
        before = {_served_by(port) for port in (raft, http)}

        later = make_certificate(make_authority(tmp_path / "later"), "replica")
        for path in (later.key, later.certificate, later.ca):
            assert path is not None
            path.replace(tmp_path / "tls" / path.name)
        after = {_served_by(port) for port in (raft, http)}
    finally:
        _orderlymq("down", *place)
    _orderlymq("up", "-f", str(manifest), "--detach", *place)
    try:
        second = json.loads(_orderlymq("demo", "--seconds", "4", *place))
    finally:
        _orderlymq("down", *place)

    assert (len(before), len(after), before & after) == (1, 1, set())
    for verdict in (first, second):
        assert (verdict["kept"], verdict["findings"]) == (True, [])
        assert verdict["counts"]["acknowledged"] == verdict["counts"]["sent"] > 10
        assert list(verdict["ackGapMs"]) == ["leader killed"]
