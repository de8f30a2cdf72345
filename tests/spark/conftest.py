"""One cluster and one Spark for all tests of the pipelines; both are skipped if there is no Java."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from orderlymq.blocking import AdminClient
from orderlymq_spark.locations.addresses import location
from orderlymq_spark.locations.location import Location
from tests.cluster.processes import Group
from tests.ports import free_ports
from tests.spark.clusters import Clusters
from tests.spark.s3 import ANOTHER, BUCKET, PROGRAM, S3, environment
from tests.spark.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests that need Spark if it cannot run here."""
    reason = ""
    if shutil.which("java") is None:
        reason = "there is no Java; Spark needs Java 17"
    for item in items:
        if item.get_closest_marker("spark") is not None and reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """Return a name server and one broker group of one replica."""
    with Group(tmp_path_factory.mktemp("spark-cluster"), 1) as group:
        yield group


@pytest.fixture(scope="session")
def topics(group: Group) -> Iterator[Topics]:
    """Return a helper that makes topics and fills them."""
    with AdminClient(group.name_server_address) as admin:
        yield Topics(group.name_server_address, admin)


@pytest.fixture(scope="session")
def s3_port() -> Iterator[int]:
    """Return the port of the S3 server, which all processes that start from now on use."""
    (port,) = free_ports(1)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(port).items():
            patch.setenv(name, value)
        yield port


@pytest.fixture(scope="session")
def s3_server(s3_port: int) -> Iterator[S3]:
    """Return an S3 server behind a proxy."""
    if not PROGRAM.exists() and ANOTHER not in os.environ:
        pytest.skip(f"there is no {PROGRAM}; `make test-spark` installs it")
    with S3(s3_port) as server:
        yield server


@pytest.fixture
def s3(s3_server: S3) -> Iterator[S3]:
    """Return the S3 server without any faults."""
    s3_server.reset()
    yield s3_server
    s3_server.reset()


@pytest.fixture(params=["local", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    """Return an empty folder: once on a file system, once in an object store."""
    if request.param == "local":
        return location(tmp_path / "root")
    request.getfixturevalue("s3")
    return location(f"s3a://{BUCKET}/{uuid4().hex}")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, s3_port: int) -> Iterator["SparkSession"]:
    """Return a small Spark whose tasks can reach the S3 server."""
    from orderlymq_spark.run.session import start_session  # noqa: PLC0415 - only where Spark is needed

    os.environ["PYSPARK_PYTHON"] = sys.executable
    # On a busy machine, a Python may take minutes to start.
    patience = {"spark.python.authenticate.socketTimeout": "600s"}
    session = start_session("tests", master="local[2]", memory="700m", settings=patience)
    yield session
    session.stop()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that makes folders for checkpoints."""

    def make(name: str) -> Path:
        return tmp_path / "checkpoints" / name

    return make


@pytest.fixture(scope="session")
def clusters(topics: Topics, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    """Return the cluster of the tests as a source, and another one as the target of its mirrors."""
    with (
        Group(tmp_path_factory.mktemp("target-cluster"), 1) as target,
        AdminClient(target.name_server_address) as admin,
    ):
        yield Clusters(topics, Topics(target.name_server_address, admin))
