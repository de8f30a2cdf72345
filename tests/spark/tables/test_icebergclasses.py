"""Neither the server of a catalogue nor a writer of a table can run a program in the driver."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import orjson
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from orderlymq_spark.errors import OptionError
from orderlymq_spark.tables.iceberg import data_folder, open_catalog, open_table
from tests.spark.tables.test_iceberg import SCHEMA


class Planted(PyArrowFileIO):
    """A class that an attacker wants to be instantiated."""

    made: ClassVar[list[tuple[Any, ...]]] = []

    def __init__(self, *given: Any, **named: Any) -> None:
        self.made.append((given, named))
        super().__init__()


class Chosen(PyArrowFileIO):
    """A class of the user's own."""


PLANTED = f"{Planted.__module__}.Planted"


@pytest.fixture(autouse=True)
def made() -> Iterator[list[tuple[Any, ...]]]:
    """Return the instances that were made, and forget them."""
    yield Planted.made
    Planted.made.clear()


@contextmanager
def rest_catalogue(overrides: dict[str, object]) -> Iterator[str]:
    """Answer the first request of every client with properties; yield the address."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = orjson.dumps({"defaults": {}, "overrides": overrides})
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_rest_catalogue_chooses_no_class(made: list[tuple[Any, ...]]) -> None:
    """Once, the class was instantiated when the catalogue was opened, with arguments of the catalogue's server."""
    auth = {"type": "custom", "impl": PLANTED, "custom": {"args": ["/bin/sh", "-c", "true"]}}

    with rest_catalogue({"auth": auth}) as uri, pytest.raises(OptionError, match="Planted"):
        open_catalog("lake", {"type": "rest", "uri": uri})

    assert made == []


@pytest.mark.parametrize("name", ["py-io-impl", "write.py-location-provider.impl"])
def test_a_writer_of_the_table_chooses_no_class(
    tmp_path: Path, name: str, made: list[tuple[Any, ...]]
) -> None:
    properties = {"uri": f"sqlite:///{tmp_path}/lake.db", "warehouse": str(tmp_path)}
    catalog = open_catalog("lake", properties)
    catalog.create_namespace("shop")
    # Another program has set a property since.
    file = Path(catalog.create_table("shop.orders", SCHEMA).metadata_location)
    metadata = orjson.loads(file.read_bytes())
    file.write_bytes(orjson.dumps(metadata | {"properties": {name: PLANTED}}))

    with pytest.raises(OptionError, match="Planted"):
        data_folder(open_table(open_catalog("lake", properties), "shop.orders", SCHEMA))

    assert made == []


def test_a_class_that_is_named_here_is_made(tmp_path: Path, made: list[tuple[Any, ...]]) -> None:
    """A class in the user's own properties of the catalogue is used; the operator permits only pyiceberg's own."""
    properties = {
        "uri": f"sqlite:///{tmp_path}/lake.db",
        "warehouse": str(tmp_path),
        "s3.retry-strategy-impl": "pyiceberg.io.S3RetryStrategy",
        "py-io-impl": f"{Chosen.__module__}.Chosen",
    }

    table = open_table(open_catalog("lake", properties), "shop.orders", SCHEMA)

    assert type(table.io) is Chosen
    assert made == []
