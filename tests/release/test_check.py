"""The release checklist finds each planted mistake, and nothing in a correct release."""

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from release.distributions import ROOT, project

from release import check

FILES = (
    "pyproject.toml",
    "Dockerfile",
    "CHANGELOG.md",
    "charts/orderlymq/Chart.yaml",
    "client/orderlymq/__init__.py",
)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a committed copy of the checked files, with a dated changelog."""
    for name in (*FILES, *(f"requirements/{lock}.lock" for lock in check.LOCKS)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    version = project(tmp_path)["version"]
    dockerfile = tmp_path / "Dockerfile"
    by_digest = f"ARG BASE=python:3.12-slim@sha256:{64 * '0'}"
    dockerfile.write_text(re.sub("^ARG BASE=.*", by_digest, dockerfile.read_text(), flags=re.M))
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## {version} (2026-01-31)\n")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"]):
        person = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
        subprocess.run(["git", *person, "-C", str(tmp_path), *words], check=True)
    return tmp_path


def found(root: Path) -> list[str]:
    checks: list[Callable[[Path], Iterator[str]]]
    checks = [
        check.check_versions,
        check.check_base,
        check.check_changelog,
        check.check_locks,
        check.check_tree,
    ]
    return [sentence for each in checks for sentence in each(root)]


def plant(path: Path, pattern: str, mistake: str) -> None:
    text, changes = re.subn(pattern, mistake, path.read_text(), count=1, flags=re.MULTILINE)
    assert changes == 1
    path.write_text(text)


def test_nothing_is_missing_where_all_is_done(copy: Path) -> None:
    assert found(copy) == []


@pytest.mark.parametrize(
    ("name", "pattern", "mistake", "sentence"),
    [
        (FILES[3], r"^version: .*", "version: 9.9.9", "Chart.yaml: version is 9.9.9"),
        (FILES[3], r"^appVersion: .*", "appVersion: 9.9.9", "Chart.yaml: appVersion is 9.9.9"),
        (FILES[1], r"^ARG VERSION=.*", "ARG VERSION=9.9.9", "Dockerfile is 9.9.9"),
        (FILES[1], r"^ARG VERSION=.*", "", "Dockerfile is None"),
        (
            FILES[1],
            r"^ARG BASE=.*",
            "ARG BASE=python:3.12-slim",
            "'python:3.12-slim' has no digest",
        ),
        (FILES[1], r"@sha256:0", "@sha256:", "has no digest"),
        (FILES[4], r"^__version__ = .*", '__version__ = "9"', "__init__.py is 9"),
        (FILES[2], r"^## .*", "## Unreleased", "has no heading"),
        (FILES[2], r"2026-01-31", "2026-02-31", "write YYYY-MM-DD"),
        (FILES[0], r'"click>=8.1"', '"click>=99"', "run.lock pins click"),
        (FILES[0], r'"click>=8.1"', '"unheard-of>=1"', "run.lock does not pin unheard-of"),
        (
            "requirements/dev.lock",
            r"^click==\S+",
            "click==8.1.0",
            "and requirements/dev.lock pins 8.1.0",
        ),
    ],
)
def test_a_planted_mistake_is_found(
    copy: Path, name: str, pattern: str, mistake: str, sentence: str
) -> None:
    plant(copy / name, pattern, mistake)
    sentences = found(copy)
    assert any(sentence in each for each in sentences)
    assert f"{name} is not committed: commit or remove it" in sentences


def test_where_git_cannot_answer_the_tree_is_not_called_clean(tmp_path: Path) -> None:
    (sentence,) = check.check_tree(tmp_path / "absent")
    assert sentence.startswith("git cannot tell")


def test_pages_that_differ_are_found(tmp_path: Path) -> None:
    """Pages are compared by a test; if it fails or does not exist, the page counts as not current."""
    (tmp_path / "test_page.py").write_text("def test_page() -> None:\n    assert False\n")
    sentences = list(check.check_generated(tmp_path, ["test_page.py"]))
    assert "generated pages are not current: run `make pages`" in sentences
