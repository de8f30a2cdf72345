"""What administrators sign with: found where the cluster runs, and never in place of what was set."""

from pathlib import Path

import pytest

from orderlymq.connection.administrator import cluster_secret, operator_credentials
from orderlymq.connection.credentials import Credentials
from orderlymq.connection.instance import ClientInstance
from orderlymq.errors import SettingError
from orderlymq.settings import ClientSettings
from orderlymq_protocol.names import OPERATOR_ACCOUNT
from orderlymq_runtime.security.clustersecret import make_cluster_secret


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data directory of a cluster that runs."""
    monkeypatch.setenv("ORDERLYMQ_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("ORDERLYMQ_CLUSTER_SECRET_FILE", raising=False)
    (tmp_path / "operator.secret").write_text("of the operator\n")
    make_cluster_secret(tmp_path / "cluster.secret")
    (tmp_path / "supervisor.json").write_text("{}")
    return tmp_path


def test_the_directory_of_a_cluster_that_runs_gives_both(directory: Path) -> None:
    """A cluster that is stopped gives nothing."""
    assert operator_credentials() == Credentials(OPERATOR_ACCOUNT, "of the operator")
    assert len(cluster_secret()) >= 32

    (directory / "supervisor.json").unlink()

    assert operator_credentials() == Credentials()
    assert cluster_secret() == b""


def test_a_file_of_the_environment_comes_first(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Kubernetes it is the only one; one that holds no secret is an error that names it."""
    other = tmp_path / "other"
    other.write_text("o" * 40)
    monkeypatch.setenv("ORDERLYMQ_CLUSTER_SECRET_FILE", str(other))
    assert cluster_secret() == b"o" * 40

    other.write_text("short")
    with pytest.raises(SettingError, match="other: it holds 5 bytes"):
        cluster_secret()


def test_only_administrators_look_there(directory: Path) -> None:
    """A producer does not sign as the operator, and an account that was set stays."""
    own = ClientSettings(access_key="writer", secret_key="of the writer")

    assert ClientInstance("127.0.0.1:1").credentials == Credentials()
    assert ClientInstance("127.0.0.1:1", own, administrator=True).credentials.access_key == "writer"
    found = ClientInstance("127.0.0.1:1", administrator=True)
    assert found.credentials.access_key == OPERATOR_ACCOUNT
