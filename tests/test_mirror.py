"""The folders of tests mirror those of the code, so that a reader finds the tests of a room by its name."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
MODULES_MAX: Final = 20

# Folders of tests for one package each.
PACKAGES: Final = {
    "backup": "broker/orderlymq_backup",
    "bench": "bench",
    "broker": "broker/orderlymq_broker",
    "client": "client/orderlymq",
    "console": "console/orderlymq_console",
    "nameserver": "broker/orderlymq_nameserver",
    "operator": "operator/orderlymq_operator",
    "protocol": "protocol/orderlymq_protocol",
    "raft": "broker/orderlymq_raft",
    "release": "release",
    "runtime": "protocol/orderlymq_runtime",
    "spark": "pipelines/orderlymq_spark",
}
# Folders of tests for whole systems, which belong to no package.
SYSTEMS: Final = frozenset(
    [
        "clients",
        "cluster",
        "docs",
        "fuzz",
        "hostile",
        "mutants",
        "nemesis",
        "security",
        "sim",
        "trouble",
    ]
)
# Folders inside the former that mirror nothing, and why.
OTHERS: Final = {
    "client/parity": "compares the SDK with RocketMQ's Java client",
    "client/testing": "tests client/orderlymq_testing",
    "operator/kube/fakes": "an API server and brokers for tests",
    "operator/kube/reconcile/deletions": "deletions pass through many modules of the room",
    "operator/kube/reconcile/refusals": "refusals pass through many modules of the room",
    "operator/stubs": "stands for the package of brokers in a process of its own",
    "raft/harness": "replicas and a network for tests",
    "raft/rules": "states the rules of the paper and the thesis, which whole groups keep",
    "release/chart": "tests charts/orderlymq",
    "spark/connect": "tests the data source behind Spark Connect",
    "spark/faults": "kills programs and stores while the data source works",
    "spark/versions": "runs trials under several versions of Spark",
}


def folders() -> Iterator[tuple[str, int]]:
    """Yield each folder of Python under tests/ and how many modules it has."""
    tests = ROOT / "tests"
    for folder in sorted({module.parent for module in tests.rglob("*.py")} - {tests}):
        if "node_modules" not in folder.parts:
            modules = [each for each in folder.glob("*.py") if not each.stem.startswith("__")]
            yield folder.relative_to(tests).as_posix(), len(modules)


def test_each_folder_of_tests_mirrors_one_of_the_code() -> None:
    """A folder or a module of the same name is there, or the folder is listed with its reason."""
    astray = []
    for name, _ in folders():
        top, _, room = name.partition("/")
        inside = any(name == other or name.startswith(f"{other}/") for other in OTHERS)
        if top in SYSTEMS or inside:
            continue
        mirrored = ROOT / PACKAGES.get(top, "none") / room
        if not mirrored.is_dir() and not mirrored.with_suffix(".py").is_file():
            astray.append(name)

    assert astray == []


def test_each_exception_is_there() -> None:
    """A list of exceptions names nothing that is gone."""
    assert {*PACKAGES, *SYSTEMS, *OTHERS} <= {name for name, _ in folders()}


def test_no_folder_of_tests_is_crowded() -> None:
    """At most 20 modules, as in the folders of the code."""
    assert [(name, count) for name, count in folders() if count > MODULES_MAX] == []
