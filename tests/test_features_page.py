"""
docs/evidence/features.md shows for every row of the features catalogue whether it is tested, and by which tests.

`python -m tests.test_features_page` writes the page again from ``features.txt``, whose lines name tests by the
beginning of their names; a line that names a test which does not exist, or two, is an error.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import pytest

HERE: Final = Path(__file__).parent
TABLE: Final = HERE / "features.txt"
PAGE: Final = HERE.parent / "docs" / "evidence" / "features.md"

STATES: Final = {
    "+": "tested",
    "~": "partly tested",
    "?": "not tested",
    "-": "not served",
    ".": "nothing to test",
}
FILES: Final = {
    "asg": "client/consumer/test_assignment.py",
    "bcl": "client/consumer/push/test_brokercalls.py",
    "blk": "client/blocking/test_facades.py",
    "bm": "broker/test_metrics.py",
    "con": "client/consumer/push/test_consumer.py",
    "conc": "client/consumer/core/test_concurrent.py",
    "ctx": "client/producer/test_transactions.py",
    "exa": "client/test_examples.py",
    "fig": "client/consumer/test_stats.py",
    "flow": "client/consumer/core/test_flowcontrol.py",
    "hol": "client/consumer/core/test_parkedkeys.py",
    "ins": "client/connection/test_instance.py",
    "int": "client/consumer/core/test_fetcher.py",
    "jacl": "clients/javaclient/test_java_access.py",
    "java": "clients/javaclient/test_java.py",
    "jflt": "clients/javaclient/test_java_filters.py",
    "jreq": "clients/javaclient/test_java_requests.py",
    "jtls": "clients/javaclient/test_java_tls.py",
    "jtrc": "clients/javaclient/test_java_trace.py",
    "jtx": "clients/javaclient/test_java_transactions.py",
    "life": "client/consumer/push/test_consumer_life.py",
    "lis": "client/consumer/listeners/test_pool.py",
    "link": "test_error_links.py",
    "mqa": "clients/mqadmin/test_commands.py",
    "mqm": "clients/mqadmin/test_matrix.py",
    "nem": "nemesis/test_trial.py",
    "off": "client/consumer/group/test_offsets.py",
    "oq": "client/consumer/core/test_queuestate.py",
    "orc": "client/oracle/test_verdict.py",
    "olk": "client/consumer/core/test_ordered_locks.py",
    "ord": "client/consumer/core/test_ordered.py",
    "page": "test_settings_page.py",
    "par": "client/test_parity.py",
    "pq": "client/consumer/core/test_processqueue.py",
    "prod": "client/producer/test_producer.py",
    "pul": "client/consumer/pull/test_consumer.py",
    "raft": "raft/rules/test_paper.py",
    "real": "client/test_real_cluster.py",
    "res": "client/consumer/core/test_ordered_results.py",
    "rex": "clients/rocketmq/test_examples.py",
    "rts": "client/connection/test_routes.py",
    "sel": "client/producer/test_selectors.py",
    "set": "client/test_settings.py",
    "sgn": "client/connection/test_signatures.py",
    "snd": "client/producer/test_sendoutcome.py",
    "tls": "runtime/security/test_tls.py",
    "trc": "client/producer/test_tracer.py",
    "trs": "client/connection/test_tracerecords.py",
}
# With a second word behind the point: that module of the folder.
FOLDERS: Final = {
    "b": "broker/processors",
    "c": "cluster",
    "n": "nameserver",
    "o": "operator",
    "ob": "operator/brokers",
    "op": "operator/plan",
    "ores": "operator/resources",
    "p": "protocol",
    "q": "operator",
    "r": "runtime",
    "rep": "broker/replication",
    "s": "spark",
    "srv": "broker/server",
    "st": "broker/state",
    "sto": "broker/store",
    "t": "trouble",
}
# Rows by section, so that none is forgotten: those of the catalogue, and the kinds of trouble.
CATALOGUE: Final = {
    "PRO": 15, "SND": 12, "SEL": 9, "ORD": 17, "GRP": 10, "CLI": 9, "PSH": 21, "ODL": 28, "ACM": 6,
    "CON": 15, "RBL": 10, "LCK": 26, "PQ": 10, "RTY": 16, "OFS": 13, "PUL": 14, "LPL": 3, "FLW": 7,
    "BRD": 6, "FLT": 7, "DLY": 5, "TXN": 3, "BAT": 5, "QRY": 3, "TRC": 5, "ACL": 2, "NSR": 8, "BRK": 7,
    "STO": 7, "HAD": 9, "ADM": 6, "MET": 8, "CFG-C": 11, "CFG-P": 9, "CFG-S": 25, "CFG-X": 6,
    "CFG-B": 10, "CFG-T": 13, "LOG": 24, "PRB": 21, "KFK": 6, "OTH": 11, "TRB": 11,
}  # fmt: skip

HEAD: Final = """\
# Features

This page lists the features that users of RocketMQ know. Each row says whether OrderlyMQ has the feature and which tests check it.

* *partly tested*: the row says what no test checks.
* *not served*: OrderlyMQ does not have the feature; the row says why.
* *nothing to test*: the row is a claim about something else, or advice for the documentation.

`python -m tests.test_features_page` generates this page from `tests/features.txt`. A test checks that they agree and that every
named test exists.

"""


@dataclass(frozen=True)
class Feature:
    """One row of the catalogue."""

    id: str
    state: str
    title: str
    tests: tuple[str, ...]
    remark: str


def read() -> dict[str, list[Feature]]:
    """Return the features by the heading under which they stand."""
    sections: dict[str, list[Feature]] = {}
    for line in TABLE.read_text().splitlines():
        if line.startswith("## "):
            features = sections[line[3:]] = []
        elif line and not line.startswith("#"):
            words, *rest = (part.strip() for part in line.split("|"))
            number, state, title = words.split(" ", 2)
            tests, remark = [*rest, "", ""][:2]
            features.append(Feature(number, state, title, tuple(tests.split()), remark))

    return sections


def features() -> Iterator[Feature]:
    for section in read().values():
        yield from section


@cache
def names_in(path: str) -> tuple[str, ...]:
    """Return the names of the tests of a file."""
    module = ast.parse((HERE / path).read_text())

    return tuple(
        node.name.removeprefix("test_")
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    )


def resolve(short: str) -> str:
    """Return the path and name of a test that a line names.

    Raises:
        LookupError: there is no such test, or there are several.
    """
    # The simulator's laws and its planted defects are two files of one suite.
    where, _, beginning = short.partition(":")
    if where == "sim":
        path = "sim/test_defects.py" if beginning.startswith("a_planted") else "sim/test_world.py"
    elif where in FILES:
        path = FILES[where]
    else:
        folder, *rooms, module = where.split(".")
        path = "/".join((FOLDERS[folder], *rooms, f"test_{module}.py"))
    found = [name for name in names_in(path) if name.startswith(beginning)]
    if len(found) != 1:
        raise LookupError(f"{short}: {len(found)} tests of tests/{path} begin so: {found}")

    return f"{path}::{found[0]}"


def render() -> str:
    """Return the page."""
    counts: dict[str, int] = dict.fromkeys(STATES, 0)
    for each in features():
        counts[each.state] += 1
    summary = ", ".join(f"{counts[state]} {word}" for state, word in STATES.items())
    parts = [HEAD, f"{sum(counts.values())} rows: {summary}.\n"]
    for title, rows in read().items():
        parts.append(
            f"\n## {title}\n\n| row | feature | state | tests, or reason |\n|---|---|---|---|\n"
        )
        for row in rows:
            links = [_link(short) for short in row.tests]
            why = "; ".join([*links, *([row.remark] if row.remark else [])])
            parts.append(f"| {row.id} | {row.title} | {STATES[row.state]} | {why} |\n")

    return "".join(parts)


def _link(short: str) -> str:
    path, _, name = resolve(short).partition("::")

    return f"[{name.replace('_', ' ')}](../../tests/{path})"


def problems(row: Feature) -> Iterator[str]:
    """Yield what is wrong with a row."""
    if row.state not in STATES:
        yield f"the state {row.state!r} is none of {', '.join(STATES)}"
    if row.state in "+~" and not row.tests:
        yield "a row counts as tested by tests"
    if row.state in "~?-" and not row.remark:
        yield "say what is missing, or why"
    for short in row.tests:
        try:
            resolve(short)
        except (LookupError, OSError) as error:
            yield str(error)


def test_every_row_names_tests_that_exist_or_a_reason() -> None:
    """A row is tested by tests that are there; any other state says why."""
    found = {row.id: list(problems(row)) for row in features()}

    assert {number: wrong for number, wrong in found.items() if wrong} == {}


def test_no_row_of_the_catalogue_is_without_a_state() -> None:
    """All rows of all sections, each once, counted without gaps from 1 on."""
    numbers = [row.id for row in features()]
    counted: Mapping[str, list[int]] = {}
    found: dict[str, list[int]] = {}
    for number in numbers:
        name, digits = re.fullmatch(r"([A-Z]+(?:-[A-Z])?)-?(\d+)", number).groups()  # type: ignore[union-attr]  # an id of another form fails the test
        found.setdefault(name, []).append(int(digits))
    counted = {name: sorted(each) for name, each in found.items()}

    assert counted == {name: list(range(1, count + 1)) for name, count in CATALOGUE.items()}


@pytest.mark.parametrize("section", ["TXN", "FLT", "TRC", "ACL", "ADM", "PRB", "CFG-B"])
def test_these_sections_leave_nothing_untested(section: str) -> None:
    """Features that RocketMQ's users and administrators ask for beyond ordered messages are tested, or not served."""
    rows = [row for row in features() if row.id.startswith(section)]

    assert [row.id for row in rows if row.state == "?" and "bench" not in row.remark] == []


def test_the_page_of_features_agrees_with_the_table() -> None:
    """docs/evidence/features.md is made from the table."""
    assert PAGE.read_text() == render(), "run python -m tests.test_features_page"


if __name__ == "__main__":
    PAGE.write_text(render())
