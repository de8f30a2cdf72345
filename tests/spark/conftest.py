"""One cluster and one Spark for all tests of the pipelines; both are skipped where there is no Java."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orderlymq.blocking import AdminClient
from tests.cluster.processes import Group
from tests.spark.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs Spark when it cannot run here."""
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
    """Return what makes topics and fills them."""
    with AdminClient(group.name_server_address) as admin:
        yield Topics(group.name_server_address, admin)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """Return a small Spark."""
    from orderlymq_spark.run.session import start_session  # noqa: PLC0415 - only where Spark is needed

    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = start_session("tests", master="local[2]", memory="700m")
    yield session
    session.stop()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Callable[[str], Path]:
    """Return folders for checkpoints."""

    def make(name: str) -> Path:
        return tmp_path / "checkpoints" / name

    return make
