"""
Figures of benchmarks have one source: the tables of docs/explanation/benchmarks.md, which `make bench` writes.

Other pages quote a median between `<!-- figure NAME -->` and `<!-- /figure -->`; the README has a table of them.
`python -m tests.docs.test_figures` fills all of them in again.
"""

import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
SOURCE: Final = ROOT / "docs" / "explanation" / "benchmarks.md"
README: Final = ROOT / "README.md"
QUOTING: Final = [
    README,
    *(path for path in sorted((ROOT / "docs").rglob("*.md")) if path != SOURCE),
]
QUOTE: Final = re.compile(r"(<!-- figure ([\w-]+) -->)(.*?)(<!-- /figure -->)", re.DOTALL)
TABLE: Final = re.compile(r"(<!-- figures -->\n).*?(<!-- end of figures -->)", re.DOTALL)

# The titles of systems, with any version, so that a page that was measured with an older version stays valid.
SYSTEMS: Final = {
    "ours": "OrderlyMQ, compiled as in the image",
    "rabbitmq": "RabbitMQ quorum queues",
    "nats": r"NATS JetStream [\d.]+, sync always",
    "kafka": r"Kafka [\d.]+, flush per message",
    "rocketmq": r"RocketMQ [\d.]+ DLedger",
    "ours-memory": "OrderlyMQ, ASYNC_FLUSH(, compiled as in the image)?",
    "nats-memory": r"NATS JetStream [\d.]+",
    "kafka-memory": r"Kafka [\d.]+",
}
# The work: section, column, and the unit after the number.
WORKS: Final = {
    "sends": ("Acknowledged ordered sends, 64 senders, 1 KiB", "messages/s", ""),
    "p50": ("Acknowledged ordered sends, one sender, 1 KiB", "p50, ms", " ms"),
    "drain": ("Drain of stored messages in order by 1 consumer", "messages/s", ""),
    "failover": ("Leader SIGKILL to the first acknowledged send", "first queue, s", " s"),
    "twice": ("Leader SIGKILL to the first acknowledged send", "stored twice", ""),
    "takeover": (
        "Consumer SIGKILL, a message in its hands, to the delivery of that message elsewhere",
        "seconds",
        " s",
    ),
}
# The rows and columns of the README's table.
ROWS: Final = {
    "ordered sends acknowledged by 64 senders, per second": "sends",
    "median latency of one sender": "p50",
    "messages drained in order by one consumer, per second": "drain",
    "leader killed, until the next acknowledged send": "failover",
    "consumer killed, until its message is delivered elsewhere": "takeover",
}
COLUMNS: Final = {
    "OrderlyMQ": "ours",
    "RabbitMQ": "rabbitmq",
    "NATS, sync always": "nats",
    "RocketMQ DLedger (in memory)": "rocketmq",
}


def cells(section: str) -> dict[str, dict[str, str]]:
    """Return the table of a section: the first value of each name, by system and column."""
    text = SOURCE.read_text().split(f"## {section}\n", 1)[1].split("\n## ", 1)[0]
    head, _, *rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    return {row[1]: dict(reversed(list(zip(head, row, strict=True)))) for row in rows}


def figure(name: str) -> str:
    """Return the median of a work and system, as in ``failover-ours``, with its unit.

    Raises:
        KeyError: the page of results does not have it, or has several.
    """
    work, _, system = name.partition("-")
    section, column, unit = WORKS[work]
    rows = {
        title: row for title, row in cells(section).items() if re.fullmatch(SYSTEMS[system], title)
    }
    if len(rows) != 1:
        raise KeyError(f"{name}: {len(rows)} rows of {section!r} are called {SYSTEMS[system]!r}")
    (row,) = rows.values()
    cell = row[column]
    median = re.search(r"\*\*(.+)\*\*", cell)
    assert median, f"{name}: {cell!r} has no median"
    return f"{median[1].removesuffix('.0')}{unit}"


def table() -> str:
    """Return the README's table."""
    lines = [f"| | {' | '.join(COLUMNS)} |", "|---|" + "---:|" * len(COLUMNS)]
    for title, work in ROWS.items():
        found = [figure(f"{work}-{system}") for system in COLUMNS.values()]
        lines.append(f"| {title} | {' | '.join(found)} |")
    return "\n".join(lines) + "\n"


def filled(text: str) -> str:
    """Return a page with its figures replaced by those of the results."""
    text = QUOTE.sub(lambda quote: f"{quote[1]}{figure(quote[2])}{quote[4]}", text)
    return TABLE.sub(lambda place: f"{place[1]}{table()}{place[2]}", text)


@pytest.mark.parametrize("page", QUOTING, ids=lambda page: page.name)
def test_figures_on_a_page_are_those_of_the_results(page: Path) -> None:
    """No page shows figures of an earlier run."""
    text = page.read_text()

    assert text == filled(text), "run python -m tests.docs.test_figures"


def test_the_readme_has_the_table() -> None:
    """The README still has the markers of the table."""
    assert TABLE.search(README.read_text())


if __name__ == "__main__":
    for each in QUOTING:
        each.write_text(filled(each.read_text()))
