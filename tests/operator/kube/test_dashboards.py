"""The chart's dashboards and alerts are valid PromQL over metrics that exist."""

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from tests.operator.promql import Vector, evaluate_history

ROOT = Path(__file__).parents[3]
FILES = ROOT / "charts" / "orderlymq" / "files"
DASHBOARDS = sorted((FILES / "dashboards").glob("*.json"))
# Grafana replaces them by times.
_TIMES = re.compile(r"\$__\w+")
# The suffixes that Prometheus gives a histogram's series.
_PARTS = re.compile(r"_(bucket|sum|count)$")
METRICS = set(
    re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/reference/metrics.md").read_text(), re.MULTILINE)
)


def _board(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _queries(board: dict[str, Any]) -> Iterator[str]:
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield target["expr"]


def _rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((FILES / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


EVERY = [
    *((f"{path.stem}-{n}", q) for path in DASHBOARDS for n, q in enumerate(_queries(_board(path)))),
    *((rule["alert"], rule["expr"]) for rule in _rules()),
]


@pytest.mark.parametrize("query", [q for _, q in EVERY], ids=[name for name, _ in EVERY])
def test_a_query_is_promql_over_metrics_that_exist(query: str) -> None:
    """Law: each query is valid PromQL over existing metrics; a renamed metric would silently empty its panel or alert."""
    promql_parser.parse(_TIMES.sub("5m", query))
    asked = set(re.findall(r"\borderlymq_(?!io_)\w+", query))

    assert asked
    assert {
        name for name in asked if name not in METRICS and _PARTS.sub("", name) not in METRICS
    } == set()


def test_the_parser_refuses_what_prometheus_refuses() -> None:
    """Law: the parser refuses what Prometheus refuses; otherwise the test above proves nothing."""
    with pytest.raises(ValueError, match="unexpected"):
        promql_parser.parse("sum by (x) orderlymq_term)")


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_events_that_a_dashboard_names_are_counted_by_the_broker(path: Path) -> None:
    """Law: the broker counts each event that a dashboard names; they are label values, so no metrics page lists them."""
    sources = "\n".join(
        each.read_text() for each in (ROOT / "broker" / "orderlymq_broker").rglob("*.py")
    )
    for query in _queries(_board(path)):
        for names in re.findall(r'event=~?"([^"]+)"', query):
            assert [name for name in names.split("|") if f'"{name}"' not in sources] == []


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_shows_what_is_chosen(path: Path) -> None:
    """Law: each query about brokers is limited to the chosen namespace and Cluster; panels have titles and do not overlap."""
    board = _board(path)
    places: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & places, panel["title"]
        places |= cells
        assert place["x"] + place["w"] <= 24
    for query in _queries(board):
        for name, chosen in re.findall(r"\b(orderlymq_(?!io_)\w+)(\{[^}]*\})?", query):
            if not name.startswith("orderlymq_operator_"):
                assert 'namespace=~"$namespace"' in chosen, query
                assert 'orderlymq_io_cluster=~"$cluster"' in chosen, query
    assert len({panel["title"] for panel in board["panels"]}) == len(board["panels"])


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_mixes_no_clusters(path: Path) -> None:
    """Law: a dashboard does not mix Clusters or groups, although their groups, topics,
    pods and queue numbers may be the same.
    """
    for panel in _board(path)["panels"]:
        for target in panel["targets"]:
            query, legend = target["expr"], target.get("legendFormat", "")
            if "orderlymq_operator_" in query:
                continue
            for kept in re.findall(r"\bby \(([^)]*)\)", query):
                labels = set(kept.split(", ")) - {"le"}
                if labels == {"event"}:
                    continue  # A total of what is chosen.
                assert {"namespace", "orderlymq_io_cluster"} <= labels or "pod" in labels, query
                assert "queue" not in labels or "orderlymq_io_group" in labels, query
            outer = re.match(r"(?:histogram_quantile\([\d.]+, )?\w+ by \(([^)]*)\)", query)
            for label in set(outer[1].split(", ")) - {"le"} if outer else ():
                assert f"{{{{{label}}}}}" in legend, query


def test_hand_overs_are_counted_for_each_queue_of_each_broker_group() -> None:
    """Law: hand-overs are counted per queue of a broker group, and a series that is missing for a step is no hand-over."""
    (query,) = (
        target["expr"]
        for path in DASHBOARDS
        for panel in _board(path)["panels"]
        if panel["title"] == "Hand-overs in five minutes"
        for target in panel["targets"]
    )
    query = re.sub(r"\$\w+", ".*", query)

    def at(time_s: float, *, last: float, missing_s: range = range(0)) -> dict[str, Vector]:
        epochs = {"0": 9.0, "1": 4.0 if time_s < 200 else last}
        lock = {"namespace": "shop", "orderlymq_io_cluster": "demo", "group": "billing"}
        lock |= {"topic": "orders", "queue": "0", "holder": "a"}
        found: Vector = {
            frozenset({**lock, "orderlymq_io_group": group}.items()): epoch
            for group, epoch in epochs.items()
            if group != "0" or time_s not in missing_s
        }
        return {"orderlymq_queue_lock_epoch": found}

    def count(**what: Any) -> list[float]:
        return list(evaluate_history(query, partial(at, **what), 300.0).values())

    assert count(last=4.0, missing_s=range(90, 121)) == [0.0]
    assert count(last=6.0) == [2.0]


def test_dashboards_are_distinguished() -> None:
    """Law: each dashboard has its own uid, by which Grafana keeps it."""
    assert len({_board(path)["uid"] for path in DASHBOARDS}) == len(DASHBOARDS) >= 2
