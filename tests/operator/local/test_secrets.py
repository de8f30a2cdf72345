import os
from pathlib import Path

import pytest

from orderlymq_operator.local.secrets import read_secret, unusable_files
from orderlymq_operator.resources.kinds import User
from orderlymq_operator.resources.manifests.reader import Manifest, parse
from tests.operator.examples import cluster


def _user(path: Path) -> Manifest:
    text = f"""
apiVersion: orderlymq.io/v1alpha1
kind: User
metadata: {{name: shop-writer}}
spec: {{clusterRef: {{name: demo}}, secretFrom: {{file: "{path}"}}}}
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
    manifest = _user(path)
    user = manifest.resource
    assert isinstance(user, User)

    (refused,) = unusable_files(cluster(), [manifest])

    assert refused.reason == f"{path} cannot be read: {why}"
    assert read_secret(user) is None
