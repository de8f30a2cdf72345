"""
Counters of remoting traffic as Prometheus reads them.

No registry is global: the process that owns one registers `TrafficCollector`.
"""

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from orderlymq_runtime.remoting.traffic import Traffic
from orderlymq_runtime.sockets.inputbudget import InputBudget


class TrafficCollector(Collector):
    """Show several `Traffic` objects of one process, distinguished by the label ``role``."""

    def __init__(self, traffic_by_role: dict[str, Traffic]) -> None:
        self._traffic_by_role = traffic_by_role

    def collect(self) -> Iterable[Metric]:
        """Return the counters as they stand now."""
        prefix = "orderlymq_remoting_"
        gauge = GaugeMetricFamily(prefix + "connections", "Open connections", labels=["role"])
        opened = CounterMetricFamily(
            prefix + "connections_opened", "Connections opened since the start", labels=["role"]
        )
        frames = CounterMetricFamily(
            prefix + "frames", "Frames received and sent", labels=["role", "direction"]
        )
        octets = CounterMetricFamily(
            prefix + "bytes", "Bytes received and sent", labels=["role", "direction"]
        )
        errors = CounterMetricFamily(
            prefix + "errors",
            "Connections that this process closed or lost and calls that failed, by kind",
            labels=["role", "kind"],
        )
        for role, traffic in self._traffic_by_role.items():
            gauge.add_metric([role], traffic.connections)
            opened.add_metric([role], traffic.accepted)
            frames.add_metric([role, "in"], traffic.frames_in)
            frames.add_metric([role, "out"], traffic.frames_out)
            octets.add_metric([role, "in"], traffic.bytes_in)
            octets.add_metric([role, "out"], traffic.bytes_out)
            for kind, count in sorted(traffic.errors.items()):
                errors.add_metric([role, kind], count)
        return [gauge, opened, frames, octets, errors]


class InputBudgetCollector(Collector):
    """Show the budget of a process for unfinished input."""

    def __init__(self, budget: InputBudget) -> None:
        self._budget = budget

    def collect(self) -> Iterable[Metric]:
        """Return it as it stands now."""
        budget = self._budget
        held = GaugeMetricFamily(
            "orderlymq_input_bytes",
            "Bytes kept for unfinished frames, TLS handshakes and HTTP connections",
            labels=["peers"],
        )
        held.add_metric(["strangers"], budget.held_by_strangers)
        held.add_metric(["clients"], budget.held_by_clients)
        most = GaugeMetricFamily(
            "orderlymq_input_bytes_max", "Limit of orderlymq_input_bytes", labels=["peers"]
        )
        most.add_metric(["strangers"], budget.strangers_max)
        most.add_metric(["all"], budget.bytes_max)
        refused = CounterMetricFamily(
            "orderlymq_input_refusals",
            "Peers that were closed because the budget for unfinished input was full, by its use",
            labels=["use"],
        )
        for use, count in sorted(budget.refusals.items()):
            refused.add_metric([use], count)
        return [held, most, refused]
