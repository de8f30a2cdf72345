"""Five distributions: no package is missing or in two of them, and each requires what it imports."""

import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from release.distributions import ROOT, Distribution, distributions, metadata, project, requirements
from release.wheels import SERVER, stage, toml

from orderlymq import __version__
from orderlymq.cli import table

ALL = {each.name: each for each in distributions()}

# Modules whose distribution has another name.
MODULES = {"prometheus_client": "prometheus-client", "yaml": "pyyaml"}
# Modules that another distribution brings: pydantic's core, and FastStream's dependency injection.
BROUGHT = {"fast_depends": "faststream", "pydantic_core": "pydantic"}
# Modules that only run in another distribution, which has their dependencies.
FOR_SERVERS = {
    "orderlymq_protocol/sealedsecrets.py",
    "orderlymq_runtime/process/loop.py",
    "orderlymq_runtime/pages/callers.py",
    "orderlymq_runtime/pages/looplag.py",
    "orderlymq_runtime/pages/server.py",
    "orderlymq_runtime/pages/trafficmetrics.py",
}
OPTIONAL = {
    # The test kit is required by its own name and is part of the server.
    "orderlymq": {
        "fastavro",
        "faststream",
        "opentelemetry",
        "orderlymq_testing",
        "pydantic",
        "taskiq",
        "zstandard",
    },
    "orderlymq-server": {
        "obstore",
        "pytest",
    },  # users of backups in S3, or of the plugin, have it
    "orderlymq-spark": {
        "fastavro",
        "google",
        "pyiceberg",
    },  # users of bodies or tables in that format have it
}
# Distributions that are required because a package of a sibling, or pyspark, imports them.
INDIRECT = {
    # The time zones of schedules, which slim images lack; zoneinfo finds them there.
    "orderlymq-operator": {"tzdata"},
    "orderlymq-server": {"aiohttp", "prometheus-client", "uvloop", "zstandard"},
    # Spark's tasks read bodies that a client compressed with Zstandard.
    "orderlymq-spark": {"pandas", "zstandard"},
}


def modules(distribution: Distribution) -> Iterator[Path]:
    for package in distribution.packages:
        for path in (ROOT / package).rglob("*.py"):
            place = path.relative_to(ROOT / Path(package).parts[0])
            if any(str(place).startswith(f"{folder}/") for folder in distribution.exclude):
                continue
            yield path


def imported(path: Path) -> set[str]:
    tops = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            tops |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            tops.add(node.module.split(".")[0])
    return tops - sys.stdlib_module_names


def reach(distribution: Distribution) -> set[str]:
    """Return the top-level packages that a distribution may import: its own and its siblings'."""
    known = {Path(package).parts[1] for package in distribution.packages}
    for sibling in distribution.siblings:
        known |= reach(ALL[sibling])
    return known


@pytest.mark.parametrize("name", ALL)
def test_a_distribution_asks_for_what_it_imports_and_for_no_more(name: str) -> None:
    distribution = ALL[name]
    found: set[str] = set()
    for path in modules(distribution):
        if not any(str(path).endswith(each) for each in FOR_SERVERS):
            found |= imported(path)
    third_party = {
        BROUGHT.get(top, MODULES.get(top, top)) for top in found - reach(distribution)
    } - OPTIONAL.get(name, set())
    assert third_party - set(distribution.dependencies) == set()
    assert set(distribution.dependencies) - third_party - INDIRECT.get(name, set()) == set()


@pytest.mark.parametrize("name", INDIRECT)
def test_a_distribution_asks_for_what_is_imported_for_it(name: str) -> None:
    """No other package brings it: reading a compressed body must not depend on what else is installed."""
    assert INDIRECT[name] <= {*ALL[name].dependencies}


def test_each_module_is_delivered_once() -> None:
    delivered = Counter(path for distribution in ALL.values() for path in modules(distribution))
    root = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = root["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    everything = {path for package in packages for path in (ROOT / package).rglob("*.py")}
    assert set(delivered) == everything
    assert set(delivered.values()) == {1}


def test_each_command_and_each_dependency_is_delivered() -> None:
    table = project()
    commands = [command for distribution in ALL.values() for command in distribution.commands]
    assert sorted(commands) == sorted(table["entry-points"]["orderlymq.commands"])
    scripts = [script for distribution in ALL.values() for script in distribution.scripts]
    assert sorted(scripts) == sorted(table["scripts"])
    used = {name for each in ALL.values() for name in each.dependencies}
    used |= {name for each in ALL.values() for names in each.extras.values() for name in names}
    run = {line.split(">")[0].split(";")[0] for line in table["dependencies"]}
    assert run <= used <= set(requirements())


def test_the_sdk_asks_for_at_most_five_libraries() -> None:
    assert len(ALL["orderlymq"].dependencies) <= 5
    assert not ALL["orderlymq"].siblings


def test_all_that_is_delivered_has_one_version() -> None:
    chart = (ROOT / "charts" / "orderlymq" / "Chart.yaml").read_text()
    version = project()["version"]
    assert __version__ == version
    assert f"version: {version}\n" in chart
    assert f"appVersion: {version}\n" in chart


@pytest.mark.parametrize("name", ALL)
def test_metadata_survives_the_way_through_toml(name: str) -> None:
    table = {"project": metadata(ALL[name])}
    assert tomllib.loads(toml(table)) == table


def test_the_compiled_server_brings_all_extensions_and_no_source_of_the_sdk(tmp_path: Path) -> None:
    compiled = tmp_path / "compiled"
    extensions = {"ab__mypyc.so", "orderlymq_protocol/frame/codec.so", "orderlymq_raft/node.so"}
    for each in (*extensions, "orderlymq_protocol/frame/codec.py"):
        (compiled / each).parent.mkdir(parents=True, exist_ok=True)
        (compiled / each).touch()
    folder = tmp_path / "stage"
    folder.mkdir()
    stage(ALL[SERVER], folder, compiled)
    wheel = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    included = wheel["targets"]["wheel"]["only-include"]
    assert {str(path.relative_to(folder)) for path in folder.rglob("*.so")} == extensions
    assert all(any(f"{each}/".startswith(f"{top}/") for top in included) for each in extensions)
    assert list((folder / "orderlymq_protocol").rglob("*.py")) == []
    assert wheel["targets"]["wheel"]["exclude"] == ["orderlymq_operator/kube"]


def test_what_a_text_advises_to_install_exists() -> None:
    """Pages and messages name a distribution with an existing extra, or an extra of a checkout."""
    packages = {path for each in ALL.values() for path in modules(each)}
    texts = [path.read_text() for path in packages]
    advised = {
        each for text in texts for each in re.findall(r"\b(orderlymq(?:-\w+)?)\[(\w+)\]", text)
    }
    of_checkout = {each for text in texts for each in re.findall(r"install '\.\[(\w+)\]'", text)}

    assert advised <= {(name, extra) for name, each in ALL.items() for extra in each.extras}
    assert {"kubernetes", "spark"} <= of_checkout <= project()["optional-dependencies"].keys()


def test_every_command_of_another_distribution_is_known() -> None:
    """The SDK names the distribution of each command; a new command must be added to both tables."""
    brought = {
        command: each.name
        for each in distributions()
        for command in each.commands
        if each.name != "orderlymq"
    }

    assert brought == table._ELSEWHERE
