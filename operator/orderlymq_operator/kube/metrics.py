"""What the operator measures: requests to the API server, passes, hand-overs of queues."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

# From a blink (a graceful end) over the target of one second to the lease of a Java client.
_TAKEOVER_BUCKETS_S: Final = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30, 60)
_PASS_BUCKETS_S: Final = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30)


class OperatorMetrics:
    """The metrics of one operator process."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self.requests = Counter(
            "orderlymq_operator_api_requests",
            "Requests to the API server, by verb, resource and status code",
            ["verb", "resource", "code"],
            registry=registry,
        )
        self.passes = Histogram(
            "orderlymq_operator_pass_seconds",
            "Time of one pass over one cluster",
            buckets=_PASS_BUCKETS_S,
            registry=registry,
        )
        self.failures = Counter(
            "orderlymq_operator_failed_passes",
            "Passes that ended with an error and are tried again",
            registry=registry,
        )
        self.ghosts = Counter(
            "orderlymq_operator_ghost_objects",
            "Objects that a watch still showed although they were gone",
            registry=registry,
        )
        self.takeovers = Histogram(
            "orderlymq_operator_takeover_seconds",
            "From the first sign that a consumer's pod is gone until its queues were free",
            buckets=_TAKEOVER_BUCKETS_S,
            registry=registry,
        )
        self.actions = Counter(
            "orderlymq_operator_actions",
            "Actions of the planner that were carried out",
            ["action"],
            registry=registry,
        )
        self.leading = Gauge(
            "orderlymq_operator_leading", "1 while this process holds the lease", registry=registry
        )
        self.clusters = Gauge("orderlymq_operator_clusters", "Clusters known", registry=registry)
        self.last_resync = Gauge(
            "orderlymq_operator_last_resync_timestamp_seconds",
            "When everything was last read anew, whatever the watches said",
            registry=registry,
        )
