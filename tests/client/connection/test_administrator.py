"""Administrators sign with an account found where the cluster runs, but never in place of one that was set."""

import asyncio
import json
from pathlib import Path

import pytest

from orderlymq.admin.client import AdminClient
from orderlymq.connection.administrator import cluster_secret, operator_credentials
from orderlymq.connection.credentials import Credentials
from orderlymq.connection.instance import ClientInstance
from orderlymq.errors import NameServersUnreachable, SettingError
from orderlymq.settings import ClientSettings
from orderlymq_protocol.names import OPERATOR_ACCOUNT
from orderlymq_runtime.security.clustersecret import make_cluster_secret
from tests.runtime.certificates import make_authority, make_certificate

# As in the settings file of a name server.
LISTEN = {"host": "127.0.0.1", "port": 1}


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data directory of a running cluster."""
    monkeypatch.setenv("ORDERLYMQ_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("ORDERLYMQ_CLUSTER_SECRET_FILE", raising=False)
    (tmp_path / "operator.secret").write_text("of the operator\n")
    make_cluster_secret(tmp_path / "cluster.secret")
    (tmp_path / "supervisor.json").write_text("{}")
    return tmp_path


def test_the_directory_of_a_cluster_that_runs_gives_both(directory: Path) -> None:
    """Law: a running cluster's directory gives operator account and cluster secret; a stopped one gives nothing."""
    assert operator_credentials() == Credentials(OPERATOR_ACCOUNT, "of the operator")
    assert len(cluster_secret()) >= 32

    (directory / "supervisor.json").unlink()

    assert operator_credentials() == Credentials()
    assert cluster_secret() == b""


def test_a_file_of_the_environment_comes_first(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: a file named in the environment comes first; without a valid secret it is an error that names it."""
    other = tmp_path / "other"
    other.write_text("o" * 40)
    monkeypatch.setenv("ORDERLYMQ_CLUSTER_SECRET_FILE", str(other))
    assert cluster_secret() == b"o" * 40

    other.write_text("short")
    with pytest.raises(SettingError, match="other: it holds 5 bytes"):
        cluster_secret()


def test_only_administrators_look_there(directory: Path) -> None:
    """Law: only administrators look there; a producer does not sign as the operator, and a set account stays."""
    own = ClientSettings(access_key="writer", secret_key="of the writer")

    assert ClientInstance("127.0.0.1:1").credentials == Credentials()
    assert ClientInstance("127.0.0.1:1", own, administrator=True).credentials.access_key == "writer"
    found = ClientInstance("127.0.0.1:1", administrator=True)
    assert found.credentials.access_key == OPERATOR_ACCOUNT


def test_the_directory_says_how_to_reach_its_cluster(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: the directory tells administrators to use TLS for its own addresses where plain calls are refused."""
    files = make_certificate(make_authority(directory / "tls"), "server")
    tls = {
        "mode": "enforcing",
        "certificate": str(files.certificate),
        "key": str(files.key),
        "ca": None,
    }
    settings = directory / "settings" / "demo-nameserver-0.json"
    settings.parent.mkdir()
    settings.write_text(json.dumps({"listen": LISTEN, "tls": {**tls, "client_auth": "none"}}))

    def speaks_tls(address: str, *, administrator: bool = True) -> bool:
        return ClientInstance(address, administrator=administrator).is_encrypted

    assert speaks_tls("127.0.0.1:1")
    assert not speaks_tls("127.0.0.1:2")
    assert not speaks_tls("127.0.0.1:1", administrator=False)
    monkeypatch.setenv("ORDERLYMQ_TLS", "false")
    assert not speaks_tls("127.0.0.1:1")
    monkeypatch.delenv("ORDERLYMQ_TLS")
    settings.write_text(json.dumps({"listen": LISTEN, "tls": {**tls, "mode": "permissive"}}))
    assert not speaks_tls("127.0.0.1:1")
    settings.write_text("no JSON")
    assert not speaks_tls("127.0.0.1:1")


@pytest.mark.parametrize(
    ("use_tls", "words"),
    [
        (False, r"the connection was lost\); .* or does it serve TLS\? set ORDERLYMQ_TLS=true"),
        (
            True,
            r"the connection was lost in the TLS handshake; does it serve plain connections only",
        ),
    ],
)
async def test_a_loss_that_looks_like_tls_says_so(use_tls: bool, words: str) -> None:
    """Law: if one side speaks TLS and the other does not, the error says so."""

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.transport.abort()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with (
        server,
        AdminClient(f"{host}:{port}", client_settings=ClientSettings(use_tls=use_tls)) as admin,
    ):
        with pytest.raises(NameServersUnreachable, match=words):
            await admin.topics()
