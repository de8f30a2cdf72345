"""
Metrics of a broker process, for Prometheus.

The rule: the hot path only adds to plain numbers; everything that can be queried is queried at a scrape.
Three histograms are observed once per entry or write, never per message.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from orderlymq_broker.processors.observe.status import Series
from orderlymq_broker.replication.interfaces import LoopFigures
from orderlymq_runtime.pages.trafficmetrics import (
    InputBudgetCollector,
    Rows,
    TrafficCollector,
    family,
)
from orderlymq_runtime.remoting.traffic import Traffic
from orderlymq_runtime.sockets.inputbudget import InputBudget

# From the sync of a fast disk to an election.
_SECONDS: Final = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 3.0)
_COUNTS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True, slots=True)
class Reading:
    """The figures of one scrape; *counters* only rise, *gauges* go up and down."""

    gauges: Mapping[str, tuple[str, float]]
    counters: Mapping[str, tuple[str, float]]
    events: Mapping[str, float]
    lag_by_replica: Mapping[str, float]
    labelled: Mapping[str, Series]
    task_failures: Mapping[str, int]


class BrokerMetrics:
    """The registry of one process."""

    def __init__(self, read: Callable[[], Reading], traffic: Traffic, budget: InputBudget) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(TrafficCollector({"server": traffic}))
        self.registry.register(InputBudgetCollector(budget))
        self._commit_seconds = Histogram(
            "orderlymq_commit_seconds",
            "Seconds from the proposal of an entry until this replica has applied it",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._batch_size = Histogram(
            "orderlymq_raft_batch_size",
            "Number of proposals in one raft entry (group commit)",
            buckets=_COUNTS,
            registry=self.registry,
        )
        self._sync_seconds = Histogram(
            "orderlymq_sync_seconds",
            "Seconds of one synchronous write to the store",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.registry.register(_Readings(read))

    def watch(self, figures: LoopFigures) -> None:
        """Observe a loop from now on."""
        figures.on_commit = self._committed
        figures.on_sync = self._sync_seconds.observe

    def _committed(self, seconds: float, proposals: int) -> None:
        self._commit_seconds.observe(seconds)
        self._batch_size.observe(proposals)


class _Readings(Collector):
    """Turns a reading into metrics."""

    def __init__(self, read: Callable[[], Reading]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        """Return all present values."""
        reading = self._read()
        return [
            *(
                family(GaugeMetricFamily, f"orderlymq_{name}", text, (), [((), value)])
                for name, (text, value) in reading.gauges.items()
            ),
            *(
                family(CounterMetricFamily, f"orderlymq_{name}", text, (), [((), value)])
                for name, (text, value) in reading.counters.items()
            ),
            family(
                CounterMetricFamily,
                "orderlymq_events",
                "Events of the broker by kind, since the process started",
                ["event"],
                _sorted_rows(reading.events),
            ),
            family(
                CounterMetricFamily,
                "orderlymq_task_failures",
                "Failures of background tasks, by task",
                ["task"],
                _sorted_rows(reading.task_failures),
            ),
            family(
                GaugeMetricFamily,
                "orderlymq_replica_lag_entries",
                "Raft entries that a replica has not stored yet, as far as the leader knows",
                ["node"],
                _sorted_rows(reading.lag_by_replica),
            ),
            *(
                family(
                    CounterMetricFamily if each.rises else GaugeMetricFamily,
                    f"orderlymq_{name}",
                    each.text,
                    each.labels,
                    each.rows,
                )
                for name, each in reading.labelled.items()
            ),
        ]

    def describe(self) -> Iterable[Metric]:
        """Describe nothing in advance, because the instance may not exist yet."""
        return []


def _sorted_rows(values: Mapping[str, float]) -> Rows:
    return [([name], value) for name, value in sorted(values.items())]
