"""The metrics of a canary: its verdict, its probes and their latency, troubles by kind, the error budget."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from orderlymq_operator.canary.troubles import Kind, Lane
from orderlymq_operator.canary.verdict import Canary, Outcome, Verdict

# From a send and a waiting pull on one machine, past the target of a second, up to an election.
_LATENCY_BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_STATUSES: Final = ("True", "False", "Unknown")


class CanaryMetrics:
    """The metrics of one canary process."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self._verdict = Gauge(
            "orderlymq_canary_order_verified",
            "1 in the row of the current status of OrderVerified, which is True, False or Unknown",
            ["status"],
            registry=registry,
        )
        self._probes = Counter(
            "orderlymq_canary_probes",
            "Probes by broker group and outcome: good, late, or failed within the target",
            ["broker_group", "outcome"],
            registry=registry,
        )
        self._latency = Histogram(
            "orderlymq_canary_latency_seconds",
            "Time from the send of a probe to its delivery",
            ["broker_group"],
            buckets=_LATENCY_BUCKETS_S,
            registry=registry,
        )
        self._troubles = Gauge(
            "orderlymq_canary_troubles",
            "Violations since the canary started, by kind",
            ["kind"],
            registry=registry,
        )
        self._repeats = Gauge(
            "orderlymq_canary_repeats",
            "Messages that were delivered again, which is allowed after a failure",
            registry=registry,
        )
        self._takeovers = Gauge(
            "orderlymq_canary_takeovers",
            "Take-overs: the canary has stopped one of its consumers, and the other has taken over its queues",
            registry=registry,
        )
        self._objective = Gauge(
            "orderlymq_canary_objective",
            "Share of the probes that must be good",
            registry=registry,
        )
        self._left = Gauge(
            "orderlymq_canary_budget_left",
            "Share of the error budget that is left, of 30 days or since the canary started; below 0 it is overspent",
            registry=registry,
        )
        for kind in Kind:
            self._troubles.labels(kind.value).set(0)

    def probe(self, lane: Lane, outcome: Outcome, took: float | None) -> None:
        """Count one probe."""
        self._probes.labels(lane.group, outcome).inc()
        if took is not None:
            self._latency.labels(lane.group).observe(took)

    def show(self, canary: Canary, verdict: Verdict) -> None:
        """Set the metrics from the verdict and the facts behind it."""
        for status in _STATUSES:
            self._verdict.labels(status).set(status == verdict.status)
        for kind, count in canary.counts.items():
            self._troubles.labels(kind.value).set(count)
        self._repeats.set(sum(each.repeats for each in canary.ledgers.values()))
        self._takeovers.set(canary.takeovers)
        self._objective.set(canary.limits.objective)
        self._left.set(canary.budget.left)
