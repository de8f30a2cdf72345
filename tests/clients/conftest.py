"""One cluster for all client programs; tests use separate topics and consumer groups."""

import platform
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.clientstable import OPTION, ClientsTable
from tests.clients.localcluster import LocalCluster
from tests.clients.programs import (
    GO_VERSIONS,
    JAVA_VERSIONS,
    MORE_JAVA_VERSIONS,
    OLDEST_JAVA,
    Go,
    Java,
    build_cpp,
    build_node,
    build_rust,
    missing,
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--whole-suite",
        action="store_true",
        help="run all integration tests of RocketMQ and more versions of its client",
    )
    parser.addoption(
        "--brief",
        action="store_true",
        help="leave out RocketMQ's own suite and examples, and what a newer version of the same client is tested for, too",
    )
    parser.addoption(
        OPTION, action="store_true", help="write docs/evidence/clients.md from this run"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "whole_suite: takes minutes; runs with --whole-suite only")
    if config.getoption(OPTION, default=False):
        config.pluginmanager.register(ClientsTable())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    whole, brief = config.getoption("--whole-suite"), config.getoption("--brief")
    left_out = [
        item
        for item in items
        if (not whole and item.get_closest_marker("whole_suite"))
        or (brief and (_is_older(item) or _is_of_suite(item)))
    ]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


def _is_of_suite(item: pytest.Item) -> bool:
    """Return whether a test runs a program that Apache publishes as a test or an example."""
    return item.path.parent.name == "rocketmq"


def _is_older(item: pytest.Item) -> bool:
    """Return whether a test uses a version between the oldest and the newest."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    given = {parameters.get(name) for name in ("java", "any_java", "version")}
    return not given.isdisjoint(JAVA_VERSIONS[:-1])


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    cluster = LocalCluster(tmp_path_factory.mktemp("clients"))
    cluster.up()
    yield cluster
    cluster.down()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    versions = JAVA_VERSIONS
    if metafunc.config.getoption("--whole-suite"):
        versions += MORE_JAVA_VERSIONS
    for name, found in (("java", versions), ("any_java", (OLDEST_JAVA, *versions))):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, found, indirect=True, scope="session")


@pytest.fixture(scope="session")
def java(request: pytest.FixtureRequest) -> Java:
    return _built(request.param)


@pytest.fixture(scope="session")
def any_java(request: pytest.FixtureRequest) -> Java:
    """Also the oldest client, for the features that it has."""
    return _built(request.param)


@pytest.fixture(scope="session")
def java_498() -> Java:
    return _built("4.9.8")


@pytest.fixture(scope="session")
def newest_java() -> Java:
    return _built(JAVA_VERSIONS[-1])


def _built(version: str) -> Java:
    reason = missing("java", "mvn")
    if reason:
        pytest.skip(reason)
    java = Java(version)
    java.build()
    return java


@pytest.fixture(scope="session", params=["2.1.0", "2.1.2"])
def released_go(request: pytest.FixtureRequest) -> Go:
    """Also an old release, for the features that it has."""
    return _built_go(request.param)


@pytest.fixture(scope="session")
def go() -> Go:
    """The newest release."""
    return _built_go("2.1.2")


@pytest.fixture(scope="session")
def newest_go() -> Go:
    """The next release, with TLS and with queues that a program assigns itself."""
    return _built_go(next(reversed(GO_VERSIONS)))


def _built_go(version: str) -> Go:
    reason = missing("go")
    if reason:
        pytest.skip(reason)
    go = Go(version)
    go.build()
    return go


@pytest.fixture(scope="session")
def node_folder() -> Path:
    reason = missing("node", "npm")
    if reason:
        pytest.skip(reason)
    return build_node()


@pytest.fixture(scope="session")
def rust_command() -> list[str]:
    if missing("cargo"):
        pytest.skip("cargo not installed here; not in CI either, for it compiles for minutes")
    return build_rust()


@pytest.fixture(scope="session")
def cpp_command() -> list[str]:
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        pytest.skip("the wheel of the C++ client is for Linux on x86-64; runs in CI")
    return build_cpp()
