"""One cluster for all client programs; tests keep apart by topics and groups of their own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.localcluster import LocalCluster
from tests.clients.programs import JAVA_VERSIONS, Java, build_go, build_node, missing


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    cluster = LocalCluster(tmp_path_factory.mktemp("clients"))
    cluster.up()
    yield cluster
    cluster.down()


@pytest.fixture(scope="session", params=JAVA_VERSIONS)
def java(request: pytest.FixtureRequest) -> Java:
    reason = missing("java", "mvn")
    if reason:
        pytest.skip(reason)
    java = Java(request.param)
    java.build()
    return java


@pytest.fixture(scope="session")
def go_program() -> Path:
    reason = missing("go")
    if reason:
        pytest.skip(reason)
    return build_go()


@pytest.fixture(scope="session")
def node_folder() -> Path:
    reason = missing("node", "npm")
    if reason:
        pytest.skip(reason)
    return build_node()
