"""The settings that each server reads from its file, and what it never shows."""

import json
from pathlib import Path

import pytest

from orderlymq_runtime.settingsfile import ServerSettings, SettingsError, read_settings

SECRET = "0123456789abcdef0123456789abcdef"


def written(path: Path, **settings: object) -> Path:
    file = path / "settings.json"
    file.write_text(json.dumps(settings))
    return file


def test_the_cluster_secret_is_read_with_the_settings_and_never_shown(tmp_path: Path) -> None:
    """Law: the cluster's secret is read from its own file with the settings, and never shown."""
    (tmp_path / "cluster.secret").write_text(SECRET + "\n")

    settings = read_settings(
        written(tmp_path, cluster_secret_file=str(tmp_path / "cluster.secret")), ServerSettings
    )

    assert settings.cluster_secret == SECRET.encode()
    assert SECRET not in repr(settings)
    assert "cluster_secret_file" in repr(settings)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (
            {"cluster_secret_file": "/nowhere/secret"},
            "cluster_secret_file /nowhere/secret: No such",
        ),
        ({"cluster_secret": "c2VjcmV0"}, "name the file in cluster_secret_file"),
    ],
)
def test_a_secret_that_cannot_be_used_is_refused(
    tmp_path: Path, settings: dict[str, object], complaint: str
) -> None:
    """Law: a secret that is missing, invalid or inside the settings (which others may read) is refused."""
    with pytest.raises(SettingsError, match=complaint) as caught:
        read_settings(written(tmp_path, **settings), ServerSettings)

    assert str(caught.value).startswith(f"{tmp_path / 'settings.json'}: ")
