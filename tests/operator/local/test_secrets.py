import os
from pathlib import Path

import pytest

from orderlymq_operator.local.secrets import look_at_secrets, read_secret, unusable_sources
from orderlymq_operator.resources.kinds import User
from orderlymq_operator.resources.manifests.reader import Manifest, parse
from tests.operator.examples import cluster


def _user(source: str) -> Manifest:
    text = f"""
apiVersion: orderlymq.io/v1alpha1
kind: User
metadata: {{name: shop-writer}}
spec: {{clusterRef: {{name: demo}}, {source}}}
"""
    (found,) = parse(text, "test.yaml")
    return found


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("pipe", "it is not a regular file"),
        ("device", "it is not a regular file"),
        ("folder", "Is a directory"),
        ("huge", "it is larger than 1 MiB"),
        ("loop", "Too many levels of symbolic links"),
        ("long", "File name too long"),
    ],
)
def test_what_is_no_file_of_a_secret_is_refused_without_waiting_for_it(
    tmp_path: Path, kind: str, why: str
) -> None:
    """Law: a secret's file that is a pipe or has no end is refused immediately;
    neither command nor supervisor waits for it.
    """
    path = tmp_path / kind
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path = Path("/dev/null")
        case "folder":
            path.mkdir()
        case "huge":
            path.touch()
            os.truncate(path, 1 << 40)
        case "loop":
            path.symlink_to(path)
        case "long":
            path = tmp_path / ("a" * 300)
    manifest = _user(f'secretFrom: {{file: "{path}"}}')
    user = manifest.resource
    assert isinstance(user, User)

    (refused,) = unusable_sources(cluster(), [manifest], running=False)

    assert refused.reason == f"{path} cannot be read: {why}"
    assert read_secret(user) is None


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"abc\n", "has 3 characters, fewer than 6"),
        (b"", "has 0 characters, fewer than 6"),
        (b"e" * 3001, "is longer than 3000 bytes"),
        (b"\xff" * 8, "is not UTF-8 text"),
    ],
)
def test_a_secret_that_brokers_do_not_accept_is_refused_like_a_missing_file(
    tmp_path: Path, content: bytes, why: str
) -> None:
    """Law: a User is refused if brokers would not accept the text in the file of its secret."""
    path = tmp_path / "writer.secret"
    path.write_bytes(content)
    manifest = _user(f"secretFrom: {{file: {path}}}")

    (refused,) = unusable_sources(cluster(), [manifest], running=True)

    assert (refused.field, refused.reason.endswith(why)) == ("spec.secretFrom.file", True)
    assert str(path) in refused.reason
    assert "6 characters to 3000 bytes" in refused.advice


def test_a_missing_environment_variable_is_named_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: a missing variable is named; a running supervisor says that only a restart gives it another environment."""
    manifest = _user("secretFrom: {env: SHOP_SECRET}")
    monkeypatch.delenv("SHOP_SECRET", raising=False)

    (start,) = unusable_sources(cluster(), [manifest], running=False)
    (change,) = unusable_sources(cluster(), [manifest], running=True)

    variable = "the environment variable SHOP_SECRET is not set"
    assert start.field == change.field == "spec.secretFrom.env"
    assert start.reason == change.reason == variable
    assert "export" in start.advice
    assert "`orderlymq down`, export it, and run `orderlymq up`" in change.advice
    assert isinstance(manifest.resource, User)
    assert look_at_secrets([manifest.resource]).troubles == {
        "shop-writer": f"{variable}; {change.advice}"
    }
    monkeypatch.setenv("SHOP_SECRET", "short")
    assert [each.reason for each in unusable_sources(cluster(), [manifest], running=True)] == [
        "the secret in the environment variable SHOP_SECRET has 5 characters, fewer than 6"
    ]
    monkeypatch.setenv("SHOP_SECRET", "long enough")
    assert unusable_sources(cluster(), [manifest], running=True) == []


@pytest.mark.parametrize("source", ["", "secretFrom: {secret: {name: writer}}"])
def test_a_secret_of_kubernetes_is_refused_on_this_machine(source: str) -> None:
    """Law: a User whose secret only Kubernetes can make or store is refused."""
    (refused,) = unusable_sources(cluster(), [_user(source)], running=False)

    assert "only Kubernetes" in refused.reason
