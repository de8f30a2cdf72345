"""
docs/reference/metrics.md lists every metric that processes show, from a real scrape.

`python -m tests.docs.test_metrics_page` writes the page again; it starts a broker group of one replica.
"""

import re
import tempfile
import urllib.request
from pathlib import Path
from typing import Final

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from orderlymq_broker.processors.lanes.reports import _COUNTED
from orderlymq_broker.state.topics.expansionrecords import ExpansionPhase
from orderlymq_nameserver.app import _NameServerCollector
from orderlymq_nameserver.kv import KvTable
from orderlymq_nameserver.processor import NameServerCore
from orderlymq_operator.canary.metrics import CanaryMetrics
from orderlymq_operator.canary.troubles import Lane
from orderlymq_operator.kube.metrics import OperatorMetrics
from orderlymq_runtime.pages.trafficmetrics import InputBudgetCollector, TrafficCollector
from orderlymq_runtime.remoting.traffic import Traffic
from orderlymq_runtime.sockets.inputbudget import InputBudget
from tests.cluster.processes import Group

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "reference" / "metrics.md"
ALERTS: Final = ROOT / "charts" / "orderlymq" / "files" / "alarms.yaml"
HEAD: Final = """\
# Metrics

Every process but the console serves Prometheus metrics at `/metrics` on its HTTP port. [Watch](../howto/watch.md) says which of them matter
and what to do; [alerts](alerts.md) are the rules of the chart. The last column names the alerts that ask for the metric.

This page is generated from a scrape of running processes: `python -m tests.docs.test_metrics_page`. A driver of a pipeline shows
`orderlymq_pipeline_rows`, `_rows_per_second`, `_lag`, `_lag_seconds` and `_last_batch` where its file has `metricsPort`.
"""
Row = tuple[str, str, str]


def rows_of(scrape: str) -> list[Row]:
    """Return name, type and meaning of our metrics in a scrape, by name."""
    found = [
        (
            family.name + ("_total" if family.type == "counter" else ""),
            family.type,
            family.documentation,
        )
        for family in text_string_to_metric_families(scrape)
        if family.name.startswith("orderlymq_") and not family.name.endswith("_created")
    ]
    return sorted(found)


def broker() -> str:
    """Return the scrape of a broker that leads."""
    with tempfile.TemporaryDirectory() as folder, Group(Path(folder), replicas=1) as group:
        node = group.wait_for_leader()
        url = f"http://127.0.0.1:{group.http_ports[node]}/metrics"
        with urllib.request.urlopen(url, timeout=5) as answer:
            text: str = answer.read().decode()
    return text


def name_server() -> str:
    """Return what a name server adds."""
    registry = CollectorRegistry()
    registry.register(_NameServerCollector(NameServerCore(KvTable({}), expiry_ms=1)))
    registry.register(TrafficCollector({"server": Traffic()}))
    registry.register(InputBudgetCollector(InputBudget()))
    return generate_latest(registry).decode()


def canary() -> str:
    """Return the scrape of a canary that has delivered."""
    metrics = CanaryMetrics()
    metrics.probe(Lane("demo-0", 0), "good", 0.01)
    return generate_latest(metrics.registry).decode()


def table(rows: list[Row]) -> str:
    """Return a Markdown table with the alerts that ask for each metric."""
    rules = re.findall(r"alert: (\w+)\n\s+expr: (.+)", ALERTS.read_text())
    lines = ["| metric | type | meaning | alerts |", "| --- | --- | --- | --- |"]
    for name, kind, text in rows:
        asked = [
            f"[{alert}](alerts.md#{alert.lower()})"
            for alert, expression in rules
            if re.search(rf"\b{name}(_bucket)?\b", expression)
        ]
        lines.append(f"| `{name}` | {kind} | {text} | {', '.join(asked)} |")
    return "\n".join(lines) + "\n"


def kinds() -> list[str]:
    """Return what `orderlymq_events_total` counts: the names that the broker counts by."""
    texts = [each.read_text() for each in (ROOT / "broker" / "orderlymq_broker").rglob("*.py")]
    named = {name for text in texts for name in re.findall(r'counters\["(\w+)"\]', text)}
    ends = {"transactions_committed", "transactions_rolled_back"}
    return sorted(
        named | ends | {*_COUNTED.values()} | {f"expansion_{each.value}" for each in ExpansionPhase}
    )


def render() -> str:
    """Return the page."""
    operator = generate_latest(OperatorMetrics().registry).decode()
    parts = {
        "Brokers": broker(),
        "Name servers": name_server(),
        "The operator": operator,
        "A canary": canary(),
    }
    tables = [f"\n## {title}\n\n{table(rows_of(scrape))}" for title, scrape in parts.items()]
    names = ", ".join(f"`{kind}`" for kind in kinds())
    events = f"\n## Events\n\n`orderlymq_events_total` has a row for each kind of event that there was:\n{names}.\n"
    return HEAD + "".join(tables) + events


def test_dashboards_ask_for_events_that_there_are() -> None:
    """A kind that gets another name would empty its panel without a word."""
    boards = "".join(each.read_text() for each in (ALERTS.parent / "dashboards").glob("*.json"))
    asked = {
        kind for found in re.findall(r'event=~?\\"([\w|]+)', boards) for kind in found.split("|")
    }

    assert asked
    assert asked <= set(kinds())


@pytest.mark.cluster
def test_the_page_of_metrics_lists_what_a_scrape_shows() -> None:
    """A metric that comes, goes or changes its meaning changes the page."""
    assert PAGE.read_text() == render(), "run python -m tests.docs.test_metrics_page"


if __name__ == "__main__":
    PAGE.write_text(render())
