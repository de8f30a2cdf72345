"""
docs/reference/metrics.md lists every metric of a real scrape of all processes.

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
ALERTS: Final = ROOT / "charts" / "orderlymq" / "files" / "alerts.yaml"
HEAD: Final = """\
# Metrics

Every process except the console serves Prometheus metrics at `/metrics` on its HTTP port. [Watch](../howto/watch.md) says which metrics
matter and what to do. [Alerts](alerts.md) describes the alert rules of the chart. The last column of each table names the alerts that
use the metric.

`python -m tests.docs.test_metrics_page` generates this page from a scrape of running processes. The page does not list the metrics of a
pipeline's driver: `orderlymq_pipeline_rows`, `_rows_per_second`, `_lag`, `_lag_seconds` and `_last_batch`. A driver serves them
if its file sets `metricsPort`.

Each counter and histogram also has a series that ends in `_created`: the time at which its process began to count, in seconds.
"""
#: The meaning of each kind of event.
EVENTS: Final = {
    "access_denied": "Requests that access control refused",
    "administrative_changes": "Administrative requests that changed something",
    "bytes_in": "Bytes of messages that were stored",
    "bytes_out": "Bytes of messages that were delivered to consumers",
    "client_ids_refused": "Requests under a client id that belongs to another client (code 20516)",
    "clients_expired": "Clients that were proven dead and had queue locks, lanes or memberships",
    "commits_backwards": "Commits of an offset below the stored one; they change nothing",
    "commits_out_of_range": "Commits of an offset that the queue does not have; refused",
    "commits_without_room": "Commits that were refused because the broker group stores the maximum number of offsets",
    "dead_letters": "Messages that were stored as dead letters",
    "dead_letters_not_held": "Dead letters that a RocketMQ client of a consumer group with HoldKey sent without parking the key",
    "delayed_delivered": "Messages with a delay level that were delivered",
    "delayed_dropped": "Messages with a delay level that were not delivered, because the message or its topic no longer existed",
    "duplicate_clients": "Times that a client id was seen on a second live connection",
    "duplicate_sends": "Repeated sends that were answered with the queue and offset of the first one",
    "expansion_fenced": "Queue expansions that began to refuse writes",
    "expansion_open": "Queue expansions that ended or were aborted; writes are accepted again",
    "expansion_settling": "Queue expansions that published the new queue list to clients",
    "expansion_switched": "Queue expansions that switched to the new queue list",
    "fenced_commits": "Commits of a client that does not hold the queue lock or has an old epoch; refused",
    "fenced_pulls": "Pulls of a client that does not hold the queue lock or has an old epoch; refused",
    "impossible_operators": "Requests with an operator token that no operator can have received yet; refused",
    "lane_messages_expired": "Messages of lanes that retention deleted before they were handed out",
    "lanes_completed": "Attempts that completed their messages",
    "lanes_expired": "Attempts whose lease ended because the member sent no report",
    "lanes_freed": "Parked or held lanes that an administrator released",
    "lanes_handed_out": "Attempts that began",
    "lanes_held": "Attempts that failed; the lane waits for an administrator",
    "lanes_parked": "Attempts that failed; the lane is tried again later, or its message becomes a dead letter",
    "lanes_released": "Attempts that a member returned without a failure",
    "lanes_repeated": "Lanes that were handed out again to a repeated fetch",
    "lanes_stale": "Reports about an attempt that had ended; they change nothing",
    "leases_expired": "Queue locks that ended because their holder did not renew them",
    "members_expired": "Members that were removed from their consumer group because their heartbeats stopped",
    "messages_in": "Messages that were stored",
    "messages_out": "Messages that were delivered to consumers",
    "parked_keys_refused": "Keys that could not be parked because there are too many or the key is too long; their queue stops",
    "previous_secrets_used": "Requests that were signed with the previous secret of an account",
    "proposals_refused": "Proposals that could not be stored as records of the raft log",
    "quota_refusals": "Requests that a quota refused",
    "rebalances_requested": "Requests of an operator to reassign the queues of a consumer group",
    "replies_pushed": "Replies that reached the client that had sent the request",
    "sends_by_old_route": "Sends whose queue was chosen from an old queue list; refused",
    "sends_during_expansion": "Sends that were refused during an expansion of their topic's queues",
    "stale_operators": "Requests of an operator that a newer operator has replaced; refused",
    "timers_cancelled": "Timer messages that were cancelled or recalled",
    "timers_delivered": "Timer messages that were delivered",
    "timers_dropped": "Timer messages that were not delivered, because the message or its topic no longer existed",
    "transaction_checks": "Checks of half messages that were sent to producers",
    "transaction_checks_without_producer": "Times that no producer of the producer group was connected that could be asked",
    "transactions_committed": "Transactions that were committed",
    "transactions_ended_again": "Requests to end a transaction that had already ended or was ending",
    "transactions_given_up": "Half messages that the broker abandoned, after the last check or at the maximum age",
    "transactions_opened": "Half messages that were stored",
    "transactions_rolled_back": "Transactions that were rolled back",
    "views_dropped": "Times that a leader discarded its state beyond the applied log because proposals were lost",
}
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
    """Return the scrape of a leading broker."""
    with tempfile.TemporaryDirectory() as folder, Group(Path(folder), replicas=1) as group:
        node = group.wait_for_leader()
        url = f"http://127.0.0.1:{group.http_ports[node]}/metrics"
        with urllib.request.urlopen(url, timeout=5) as answer:
            text: str = answer.read().decode()
    return text


def name_server() -> str:
    """Return the metrics that a name server adds."""
    registry = CollectorRegistry()
    registry.register(_NameServerCollector(NameServerCore(KvTable({}), expiry_ms=1)))
    registry.register(TrafficCollector({"server": Traffic()}))
    registry.register(InputBudgetCollector(InputBudget()))
    return generate_latest(registry).decode()


def canary() -> str:
    """Return the scrape of a canary that has delivered messages."""
    metrics = CanaryMetrics()
    metrics.probe(Lane("demo-0", 0), "good", 0.01)
    return generate_latest(metrics.registry).decode()


def table(rows: list[Row]) -> str:
    """Return a Markdown table with the alerts that use each metric."""
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
    """Return the kinds of `orderlymq_events_total`: the names of the broker's counters."""
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
    lines = [
        "| event | counts |",
        "| --- | --- |",
        *(f"| `{kind}` | {EVENTS[kind]} |" for kind in kinds()),
    ]
    text = "`orderlymq_events_total` has a row for each kind of event that there was since the process started."
    events = f"\n## Events\n\n{text}\n\n" + "\n".join(lines) + "\n"
    return HEAD + "".join(tables) + events


def test_dashboards_ask_for_events_that_there_are() -> None:
    """The panel of a renamed kind would be empty without any error."""
    boards = "".join(each.read_text() for each in (ALERTS.parent / "dashboards").glob("*.json"))
    asked = {
        kind for found in re.findall(r'event=~?\\"([\w|]+)', boards) for kind in found.split("|")
    }

    assert asked
    assert asked <= set(kinds())


def test_each_kind_of_event_has_its_meaning() -> None:
    """A new kind needs a sentence; the sentence of a removed kind must be removed."""
    assert sorted(EVENTS) == kinds()


@pytest.mark.cluster
def test_the_page_of_metrics_lists_what_a_scrape_shows() -> None:
    """A new, removed or changed metric changes the page."""
    assert PAGE.read_text() == render(), "run python -m tests.docs.test_metrics_page"


if __name__ == "__main__":
    PAGE.write_text(render())
