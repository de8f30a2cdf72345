"""
Metrics as Prometheus reads them: how one is made from its rows, and the counters of remoting traffic.

No registry is global: the process that owns one registers `TrafficCollector`.
"""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from orderlymq_runtime.remoting.traffic import Traffic
from orderlymq_runtime.sockets.inputbudget import InputBudget

Rows: TypeAlias = Iterable[tuple[Sequence[str], float]]


def family(
    kind: type[CounterMetricFamily | GaugeMetricFamily],
    name: str,
    text: str,
    labels: Sequence[str],
    rows: Rows,
) -> Metric:
    """Return a metric with a value for each row of labels."""
    made = kind(name, text, labels=labels)
    for values, value in rows:
        made.add_metric(values, value)
    return made


class TrafficCollector(Collector):
    """Shows several `Traffic` objects of one process, distinguished by the label ``role``."""

    def __init__(self, traffic_by_role: dict[str, Traffic]) -> None:
        self._traffic_by_role = traffic_by_role

    def collect(self) -> Iterable[Metric]:
        """Return the present counters."""
        roles = self._traffic_by_role.items()
        return [
            family(
                GaugeMetricFamily,
                "orderlymq_remoting_connections",
                "Open connections",
                ["role"],
                [([role], each.connections) for role, each in roles],
            ),
            family(
                CounterMetricFamily,
                "orderlymq_remoting_connections_opened",
                "Connections opened since the process started",
                ["role"],
                [([role], each.accepted) for role, each in roles],
            ),
            family(
                CounterMetricFamily,
                "orderlymq_remoting_frames",
                "Frames received and sent",
                ["role", "direction"],
                _both_ways((role, each.frames_in, each.frames_out) for role, each in roles),
            ),
            family(
                CounterMetricFamily,
                "orderlymq_remoting_bytes",
                "Bytes received and sent",
                ["role", "direction"],
                _both_ways((role, each.bytes_in, each.bytes_out) for role, each in roles),
            ),
            family(
                CounterMetricFamily,
                "orderlymq_remoting_errors",
                "Connections that this process closed or lost, and calls that failed, by kind",
                ["role", "kind"],
                [
                    ([role, kind], count)
                    for role, each in roles
                    for kind, count in sorted(each.errors.items())
                ],
            ),
        ]


class InputBudgetCollector(Collector):
    """Shows the budget of a process for unfinished input."""

    def __init__(self, budget: InputBudget) -> None:
        self._budget = budget

    def collect(self) -> Iterable[Metric]:
        """Return the present state of the budget."""
        budget = self._budget
        return [
            family(
                GaugeMetricFamily,
                "orderlymq_input_bytes",
                "Bytes kept for unfinished frames, TLS handshakes and HTTP connections",
                ["peers"],
                [(["strangers"], budget.strangers.held), (["clients"], budget.clients.held)],
            ),
            family(
                GaugeMetricFamily,
                "orderlymq_input_bytes_max",
                "Limit of orderlymq_input_bytes",
                ["peers"],
                [(["strangers"], budget.strangers_max), (["all"], budget.bytes_max)],
            ),
            family(
                CounterMetricFamily,
                "orderlymq_input_refusals",
                "Connections that were closed because the budget for unfinished input was full, "
                "by use",
                ["use"],
                [([use], count) for use, count in sorted(budget.refusals.items())],
            ),
        ]


def _both_ways(counts: Iterable[tuple[str, int, int]]) -> Rows:
    for role, came, went in counts:
        yield [role, "in"], came
        yield [role, "out"], went
