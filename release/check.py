"""
List what is missing for a release: ``python -m release.check [GENERATED TESTS]``, or ``make release-check``.

Each check returns sentences that say what to do. The checks run offline; `make lock` looks for newer dependencies.
The exit code is 1 if something is missing.
"""

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Final

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from release.distributions import ROOT, project

# The extra that each lock file pins in addition to the dependencies, in the order in which `make lock` makes the files.
LOCKS: Final = ("dev", "run", "compile", "spark", "kubernetes", "docs")
_PIN: Final = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", re.MULTILINE)
_VERSION_LINES: Final = {
    "client/orderlymq/__init__.py": r'^__version__ = "(.*)"$',
    "Dockerfile": r"^ARG VERSION=(.+)$",
}
_BY_DIGEST: Final = re.compile(r"@sha256:[0-9a-f]{64}$")
_WORDS_OF_CRDS: Final = ("-m", "orderlymq_operator.resources.crd", "--check")


def check_versions(root: Path) -> Iterator[str]:
    """Compare the version of pyproject.toml with those of the SDK, the chart and the image."""
    version = project(root)["version"]
    chart = yaml.safe_load((root / "charts" / "orderlymq" / "Chart.yaml").read_text("utf-8"))
    places = [
        (f"charts/orderlymq/Chart.yaml: {key}", chart.get(key)) for key in ("version", "appVersion")
    ]
    for name, line in _VERSION_LINES.items():
        found = re.search(line, (root / name).read_text("utf-8"), re.MULTILINE)
        places.append((name, found[1] if found else None))
    for place, stated in places:
        if str(stated) != version:
            yield f"{place} is {stated}, and pyproject.toml says {version}: make them equal"


def check_base(root: Path) -> Iterator[str]:
    """Check that the image's base is pinned by a digest, because a tag may name another image tomorrow."""
    found = re.search(r"^ARG BASE=(.*)$", (root / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    base = found[1] if found else ""
    if not _BY_DIGEST.search(base):
        yield (
            f"Dockerfile: the base image {base!r} has no digest: write that of "
            f"`docker buildx imagetools inspect {base or 'IMAGE'}` behind it, as in NAME:TAG@sha256:DIGEST"
        )


def check_changelog(root: Path) -> Iterator[str]:
    """Look for the heading ``## VERSION (YYYY-MM-DD)``."""
    version = project(root)["version"]
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    found = re.search(rf"^## {re.escape(version)} \((.*)\)$", text, re.MULTILINE)
    if found is None:
        yield f"CHANGELOG.md has no heading `## {version} (YYYY-MM-DD)`: rename that of what is unreleased"
        return
    try:
        date.fromisoformat(found[1])
    except ValueError:
        yield f"CHANGELOG.md dates {version} with {found[1]!r}: write YYYY-MM-DD"


def check_locks(root: Path) -> Iterator[str]:
    """Compare each lock file with the ranges of pyproject.toml, and with the lock files before it."""
    table = project(root)
    known: dict[str, tuple[str, str]] = {}
    for lock in LOCKS:
        path = f"requirements/{lock}.lock"
        text = (root / path).read_text(encoding="utf-8")
        pins: dict[str, str] = {
            canonicalize_name(name): version for name, version in _PIN.findall(text)
        }
        extra = [] if lock == "run" else table["optional-dependencies"].get(lock, [])
        for requirement in map(Requirement, (*table["dependencies"], *extra)):
            if requirement.marker and not requirement.marker.evaluate():
                continue
            found = pins.get(canonicalize_name(requirement.name))
            if found is None:
                yield f"{path} does not pin {requirement.name}: run `make lock`"
            elif not requirement.specifier.contains(found, prereleases=True):
                yield f"{path} pins {requirement.name} {found}, outside of {requirement.specifier}: run `make lock`"
        for name, version in sorted(pins.items()):
            # `make lock` constrains each lock file by the earlier ones.
            earlier, expected = known.setdefault(name, (path, version))
            if version != expected:
                yield f"{path} pins {name} {version}, and {earlier} pins {expected}: run `make lock`"


def check_tree(root: Path) -> Iterator[str]:
    """Ask git for uncommitted changes."""
    words = ["git", "-C", str(root), "status", "--porcelain"]
    asked = subprocess.run(words, capture_output=True, text=True, check=False)
    if asked.returncode != 0:
        yield f"git cannot tell whether the tree is clean: {asked.stderr.strip()}"
    for line in asked.stdout.splitlines():
        yield f"{line[3:]} is not committed: commit or remove it"


def check_generated(root: Path, tests: Sequence[str]) -> Iterator[str]:
    """Run the check of the CRDs, and the *tests* that compare the generated pages with their sources."""
    checks: list[tuple[str, tuple[str, ...]]] = [
        ("the CRDs are not current: run `make crds`", _WORDS_OF_CRDS)
    ]
    if tests:
        pages = ("-m", "pytest", "-q", "-n", "0", *tests)
        checks.append(("generated pages are not current: run `make pages`", pages))
    for sentence, words in checks:
        ran = subprocess.run([sys.executable, *words], cwd=root, capture_output=True, check=False)
        if ran.returncode != 0:
            yield sentence


def missing(root: Path, tests: Sequence[str]) -> list[str]:
    """Return everything that is missing in the repository at *root*."""
    return [
        *check_versions(root),
        *check_base(root),
        *check_changelog(root),
        *check_locks(root),
        *check_tree(root),
        *check_generated(root, tests),
    ]


def main() -> None:
    """Print what is missing."""
    found = missing(ROOT, sys.argv[1:])
    for sentence in found:
        print(sentence)
    if found:
        sys.exit(f"{len(found)} to do before version {project()['version']} can be released")
    print(f"Version {project()['version']} can be released")


if __name__ == "__main__":
    main()
