"""
The five distributions, with the packages, dependencies and commands of each.

``distributions.toml`` assigns them. Ranges, versions and entry points come from pyproject.toml, so that each fact is
stated once.
"""

import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Distribution:
    """One wheel.

    Attributes:
        packages: folders of Python packages, relative to the repository.
        exclude: folders inside the packages that belong to another distribution.
        dependencies: names of third-party distributions.
        siblings: our distributions that it needs, in the same version.
        commands: subcommands of ``orderlymq`` that it provides.
        scripts: programs that it provides.
        extras: names of optional third-party distributions, by extra.
    """

    name: str
    description: str
    packages: list[str]
    dependencies: list[str]
    commands: list[str]
    scripts: list[str] = field(default_factory=list)
    exclude: list[str] = field(default_factory=list)
    siblings: list[str] = field(default_factory=list)
    extras: dict[str, list[str]] = field(default_factory=dict)


def project(root: Path = ROOT) -> dict[str, Any]:
    """Return the table ``project`` of the pyproject.toml in *root*."""
    whole = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    return dict(whole["project"])


def distributions() -> list[Distribution]:
    """Return all distributions, each after those that it needs."""
    text = (ROOT / "release" / "distributions.toml").read_text(encoding="utf-8")
    return [Distribution(name, **table) for name, table in tomllib.loads(text).items()]


def requirements() -> dict[str, str]:
    """Return the requirement in pyproject.toml for each third-party distribution, by name."""
    table = project()
    optional = table["optional-dependencies"]
    lines = [line for lines in (table["dependencies"], *optional.values()) for line in lines]
    return {name_of(line): line for line in reversed(lines)}


def name_of(requirement: str) -> str:
    """Return the name of the distribution in a requirement."""
    found = _NAME.match(requirement)
    assert found is not None, requirement
    return found[0].lower()


def metadata(distribution: Distribution) -> dict[str, Any]:
    """Return the table ``project`` for the pyproject.toml of one distribution."""
    table = project()
    version = table["version"]
    known = requirements()
    kept = (
        "version",
        "license",
        "license-files",
        "requires-python",
        "authors",
        "keywords",
        "classifiers",
        "urls",
    )
    made: dict[str, Any] = {key: table[key] for key in kept if key in table}
    made["name"] = distribution.name
    made["description"] = distribution.description
    made["readme"] = table["readme"]
    made["dependencies"] = [
        *(f"{sibling}=={version}" for sibling in distribution.siblings),
        *(known[name] for name in distribution.dependencies),
    ]
    made["optional-dependencies"] = {
        extra: [known[name] for name in names] for extra, names in distribution.extras.items()
    }
    groups = dict(table["entry-points"])
    commands = groups.pop("orderlymq.commands")
    chosen = {"orderlymq.commands": {name: commands[name] for name in distribution.commands}}
    own = {Path(package).name for package in distribution.packages}
    for group, points in groups.items():
        chosen[group] = {name: at for name, at in points.items() if at.partition(".")[0] in own}
    if any(chosen.values()):
        made["entry-points"] = {group: points for group, points in chosen.items() if points}
    if distribution.scripts:
        made["scripts"] = {name: table["scripts"][name] for name in distribution.scripts}
    return made
