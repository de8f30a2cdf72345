"""The series that a scrape returns."""

from prometheus_client import generate_latest

from orderlymq_broker.metrics import BrokerMetrics, Reading
from orderlymq_broker.processors.observe.status import Series
from orderlymq_runtime.remoting.traffic import Traffic
from orderlymq_runtime.sockets.inputbudget import InputBudget


def test_series_with_labels_are_shown_with_their_text() -> None:
    """Law: each row of a labelled series is one line; a series without rows shows its help only."""
    labelled = {
        "group_lag_seconds": Series(
            "Age of the oldest message", ("group", "topic"), [(("billing", "orders"), 12.5)]
        ),
        "blocked_queues": Series("Queues without progress", ("group",), []),
        "hot_keys": Series("Hot keys", (), [((), 2.0)]),
        "refusals": Series("Refusals", ("account",), [(("shop",), 3.0)], rises=True),
    }
    reading = Reading({}, {}, {}, {}, labelled, {"peer link": 2})
    metrics = BrokerMetrics(lambda: reading, Traffic(), InputBudget())

    text = generate_latest(metrics.registry).decode()

    assert 'orderlymq_group_lag_seconds{group="billing",topic="orders"} 12.5' in text
    assert "# HELP orderlymq_blocked_queues Queues without progress" in text
    assert "orderlymq_hot_keys 2.0" in text
    assert "# TYPE orderlymq_refusals_total counter" in text
    assert 'orderlymq_refusals_total{account="shop"} 3.0' in text
    assert 'orderlymq_task_failures_total{task="peer link"} 2.0' in text
