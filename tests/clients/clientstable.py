"""
The table of docs/evidence/clients.md: what each client can do with our brokers, written by the tests that check it.

`pytest tests/clients --write-clients-table` writes it. A run replaces the rows of the tests that it ran
and keeps the others, so the page can be brought up to date client by client.
"""

import json
import re
import tomllib
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Final

import pytest

from tests.clients.programs import GO_VERSIONS, JAVA_VERSIONS

HERE: Final = Path(__file__).parent
PAGE: Final = HERE.parents[1] / "docs" / "evidence" / "clients.md"
OPTION: Final = "--write-clients-table"

JAVA: Final = "Java (rocketmq-client)"
GO: Final = "Go (rocketmq-client-go)"
CPP: Final = "C++ (PyPI's rocketmq)"
NODE: Final = "Node (ali-ons)"
RUST: Final = "Rust (rocketmq-client-rust)"
CAMEL: Final = "Apache Camel (camel-rocketmq)"
STREAM: Final = "Spring Cloud Stream (spring-cloud-starter-stream-rocketmq)"
SPRING: Final = "Spring Boot (rocketmq-spring-boot-starter)"
TOOL: Final = "mqadmin (rocketmq-tools)"
EXAMPLES: Final = "Apache's examples (rocketmq-example)"
SUITE: Final = "Apache's own tests (rocketmq-test)"

HEAD: Final = """\
# Clients

RocketMQ's clients work with OrderlyMQ without changes. Each row is a test that ran an unmodified client against a running
cluster. The feature is the property that the test checks, the command that it ran, or the class of Apache's tests that it
ran. A version that ends in `dev` is a commit after the newest release.

`pytest tests/clients --write-clients-table` writes this page.
"""
SECTION: Final = """
## {client}

| version | feature | result |
|---|---|---|
"""

Row = tuple[str, str, str]


def read(text: str) -> dict[Row, str]:
    """Return the rows of a page."""
    found = {}
    client = ""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("## "):
            client = line.removeprefix("## ")
        elif line.startswith("| ") and len(cells) == 3 and cells[0] != "version":
            found[client, cells[0], cells[1]] = cells[2]
    return found


def render(rows: dict[Row, str]) -> str:
    """Return the page of these rows, with a section for each client."""
    lines = [HEAD]
    for client, of_client in groupby(sorted(rows, key=_order), key=itemgetter(0)):
        lines.append(SECTION.format(client=client))
        lines += [f"| {row[1]} | {row[2]} | {rows[row]} |\n" for row in of_client]
    return "".join(lines)


def _order(row: Row) -> tuple[str, list[int], str]:
    return row[0], [int(part) for part in re.findall(r"\d+", row[1])], row[2]


class ClientsTable:
    """The pytest plugin: it records the results of tests and writes the page at the end of the session."""

    def __init__(self) -> None:
        self._rows: dict[Row, str] = {}
        self._items: dict[str, Row] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Record the row of each test."""
        for item in items:
            row = row_of(item)
            if row is not None:
                self._items[item.nodeid] = row

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the result of a test; a skipped test leaves the page unchanged."""
        row = self._items.get(report.nodeid)
        if row is None or report.skipped:
            return
        if report.failed:
            self._rows[row] = "**fails**"
        elif report.when == "call":
            self._rows.setdefault(row, "works")

    def pytest_sessionfinish(self) -> None:
        """Write the page."""
        present = read(PAGE.read_text()) if PAGE.exists() else {}
        PAGE.write_text(render({**present, **self._rows}))


def row_of(item: pytest.Item) -> Row | None:
    """Return the row of a test, None if the test starts no client."""
    name = item.nodeid.partition("::")[2]
    title, _, parameters = name.partition("[")
    feature = title.removeprefix("test_").replace("_", " ")
    client = next(iter(_clients(item)), None)
    if client is None:
        return None
    words = parameters.rstrip("]").split("-")
    version = client[1] or next((word for word in words if word[:1].isdigit()), words[0])
    values = item.callspec.params if hasattr(item, "callspec") else {}
    if "each" in values:
        return client[0], version, f"`{values['each'].command}`"
    if "name" in values:
        return client[0], version, values["name"]
    rest = [word for word in words if word and word != version]
    return client[0], version, f"{feature} ({', '.join(rest)})" if rest else feature


def _clients(item: pytest.Item) -> Iterator[tuple[str, str]]:
    fixtures = getattr(item, "fixturenames", ())
    if item.path.parent.name == "mqadmin":
        yield TOOL, ""
    assert isinstance(item, pytest.Function)
    module = item.module
    if "suite" in fixtures:
        yield SUITE, ""
    if {"examples", "newest"} & set(fixtures):
        yield EXAMPLES, "" if "examples" in fixtures else module.VERSIONS[-1]
    for fixture, client in (("spring", SPRING), ("stream", STREAM), ("camel", CAMEL)):
        if fixture in fixtures:
            yield client, ""
    # Before Java, whose client sends the messages that the Go client consumes.
    for fixture, version in (
        ("go", "2.1.2"),
        ("newest_go", next(reversed(GO_VERSIONS))),
        ("released_go", ""),
    ):
        if fixture in fixtures:
            yield GO, version
    if {"java", "any_java", "java_498", "newest_java"} & set(fixtures):
        fixed = {"java_498": "4.9.8", "newest_java": JAVA_VERSIONS[-1]}
        yield JAVA, next((fixed[name] for name in fixtures if name in fixed), "")
    if "cpp_command" in fixtures:
        wanted = (HERE / "cpp" / "requirements.txt").read_text()
        yield CPP, re.findall(r"==(\S+)", wanted)[0]
    if "rust_command" in fixtures:
        wanted = tomllib.loads((HERE / "rust" / "Cargo.toml").read_text())["dependencies"]
        yield RUST, wanted["rocketmq-client-rust"].removeprefix("=")
    if "node_folder" in fixtures:
        lock = json.loads((HERE / "node" / "package-lock.json").read_text())
        yield NODE, lock["packages"]["node_modules/ali-ons"]["version"]
