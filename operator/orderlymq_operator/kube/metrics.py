"""The operator's metrics: requests to the API server, reconciles, takeovers of queues."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Final, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from orderlymq_operator.kube.certificates.expiry import deadline
from orderlymq_operator.kube.certificates.schedule import CertificateSet
from orderlymq_operator.plan.actions import ObservedGroup, Truth

# From a graceful end, through the target of one second, to the lease of a Java client.
_TAKEOVER_BUCKETS_S: Final = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30, 60)
_GROUP_LABELS: Final = ("namespace", "orderlymq_io_cluster", "orderlymq_io_group")
_SCHEDULE_LABELS: Final = ("namespace", "scheduled_backup")
_RECONCILE_BUCKETS_S: Final = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30)


class _GroupGauges:
    """Gauges of raft groups, because lost pods report nothing themselves; with the same labels as the pods' metrics."""

    def __init__(self, registry: CollectorRegistry) -> None:
        gauge = partial(Gauge, labelnames=_GROUP_LABELS, registry=registry)
        self.has_leader = gauge(
            "orderlymq_operator_group_has_leader",
            "1 while the operator sees a leader of the raft group",
        )
        self.replicas = gauge(
            "orderlymq_operator_group_replicas",
            "Healthy replicas of the raft group, as the operator observes them",
        )
        self.wanted = gauge(
            "orderlymq_operator_group_replicas_wanted", "Replicas that the raft group should have"
        )
        self.deadline = gauge(
            "orderlymq_operator_group_certificate_deadline_timestamp_seconds",
            "Time at which five sixths of the life of the raft group's certificate are over, in seconds since the epoch",
        )
        self.ends = gauge(
            "orderlymq_operator_group_certificate_expiry_timestamp_seconds",
            "Earliest expiry of the certificates that replicas of the raft group use, in seconds since the epoch",
        )


class _ScheduleGauges:
    """Gauges of ScheduledBackups."""

    def __init__(self, registry: CollectorRegistry) -> None:
        gauge = partial(Gauge, labelnames=_SCHEDULE_LABELS, registry=registry)
        self.ready = gauge(
            "orderlymq_operator_scheduled_backup_ready",
            "1 while the ScheduledBackup is Ready, 0 while it is not, for example after a failed Backup; absent while it is "
            "suspended",
        )
        self.last_complete = gauge(
            "orderlymq_operator_scheduled_backup_last_complete_timestamp_seconds",
            "Time at which the newest complete Backup of the ScheduledBackup ended, in seconds since the epoch",
        )


class OperatorMetrics:
    """The metrics of one operator process; it reports metrics of Clusters only while it leads.

    Otherwise its old values would appear in addition to the leader's values and suppress the leader's alerts.
    """

    _leads = False

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = self._counter(
            "orderlymq_operator_api_requests",
            "Requests to the API server, by verb, resource and status code",
            ["verb", "resource", "code"],
        )
        self.reconciles = self._histogram(
            "orderlymq_operator_reconcile_seconds",
            "Duration of one reconcile of a Cluster, Pipeline, Backup or ScheduledBackup",
            _RECONCILE_BUCKETS_S,
        )
        self.failures = self._counter(
            "orderlymq_operator_reconcile_errors",
            "Reconciles that ended with an error and are retried",
        )
        self.stale_objects = self._counter(
            "orderlymq_operator_stale_watch_objects",
            "Objects that a watch still showed although they no longer existed",
        )
        self.takeovers = self._histogram(
            "orderlymq_operator_takeover_seconds",
            "Time from the first hint that a consumer's pod is gone until its queues were free",
            _TAKEOVER_BUCKETS_S,
        )
        self.actions = self._counter(
            "orderlymq_operator_actions", "Actions of the planner that were carried out", ["action"]
        )
        self._leading = self._gauge(
            "orderlymq_operator_leading", "1 while this process holds the lease"
        )
        self._of_groups = _GroupGauges(self.registry)
        self._groups: dict[tuple[str, str], set[str]] = {}
        self._ready = self._gauge(
            "orderlymq_operator_cluster_ready",
            "1 while the Cluster is Ready, 0 while it is not; absent for a Cluster that this operator does not serve",
            _GROUP_LABELS[:2],
        )
        # Has the values of the canary's own metric, which disappears when the canary's pod is gone.
        self._order = self._gauge(
            "orderlymq_operator_order_verified",
            "1 for the current status of the Cluster's condition OrderVerified; absent if the Cluster has no canary",
            (*_GROUP_LABELS[:2], "status"),
        )
        self._of_schedules = _ScheduleGauges(self.registry)
        self.clusters = self._gauge("orderlymq_operator_clusters", "Clusters known")
        self.unread_namespaces = self._gauge(
            "orderlymq_operator_unread_namespaces",
            "Namespaces that should be watched but cannot be read: they are gone, or the operator lacks the permission",
        )
        self.last_resync = self._gauge(
            "orderlymq_operator_last_resync_timestamp_seconds",
            "Time of the last complete resync of all objects and Clusters, in seconds since the epoch",
        )
        self.resync_limit = self._gauge(
            "orderlymq_operator_resync_limit_seconds",
            "Age of the last resync from which the alert OrderlyMQOperatorResyncStale fires",
        )

    def _counter(self, name: str, text: str, labels: Iterable[str] = ()) -> Counter:
        return Counter(name, text, tuple(labels), registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(name, text, buckets=buckets, registry=self.registry)

    def _gauge(self, name: str, text: str, labels: Iterable[str] = ()) -> Gauge:
        return Gauge(name, text, tuple(labels), registry=self.registry)

    def set_leading(self, *, leads: bool) -> None:
        """Report whether this process leads; if not, report nothing of Clusters, even if a reconcile ends later."""
        self._leads = leads
        self._leading.set(leads)
        if not leads:
            self.forget_groups()
            self._of_schedules.ready.clear()
            self._of_schedules.last_complete.clear()

    def set_groups(
        self,
        cluster: tuple[str, str],
        found: Mapping[str, ObservedGroup],
        names: Iterable[str],
        wanted: int,
    ) -> None:
        """Report the state of the raft groups in *names*; those missing in *found* have no leader and no replicas."""
        if not self._leads:
            return
        now = set()
        for name in names:
            index = name.rpartition("-")[2]
            group = found.get(name, ObservedGroup())
            labels = (*cluster, index)
            self._of_groups.has_leader.labels(*labels).set(group.leader is not None)
            self._of_groups.replicas.labels(*labels).set(
                sum(replica.healthy for replica in group.replicas.values())
            )
            self._of_groups.wanted.labels(*labels).set(wanted)
            now.add(index)
        self._drop(cluster, self._groups.get(cluster, set()) - now)
        self._groups[cluster] = now

    def set_certificates(
        self, cluster: tuple[str, str], found: Mapping[str, CertificateSet], names: Iterable[str]
    ) -> None:
        """Report the certificates in *found* for the raft groups in *names*; remove the values of the others."""
        if not self._leads:
            return
        for name in names:
            labels = (*cluster, name.rpartition("-")[2])
            made = found.get(name)
            if made is None:
                self._remove((self._of_groups.deadline, self._of_groups.ends), labels)
                continue
            self._of_groups.deadline.labels(*labels).set(deadline(made).timestamp())
            self._of_groups.ends.labels(*labels).set(made.ends.timestamp())

    def set_ready(self, cluster: tuple[str, str], *, ready: bool) -> None:
        """Report whether a Cluster is Ready."""
        if self._leads:
            self._ready.labels(*cluster).set(ready)

    def set_order(self, cluster: tuple[str, str], status: str | None) -> None:
        """Report the status of OrderVerified; None if the Cluster has no canary."""
        for each in get_args(Truth):
            if status is None:
                self._remove((self._order,), (*cluster, each))
            elif self._leads:
                self._order.labels(*cluster, each).set(each == status)

    def set_schedule(self, schedule: tuple[str, str], status: str, reason: str) -> None:
        """Report the condition Ready of a ScheduledBackup."""
        if reason == "Suspended":
            self._remove((self._of_schedules.ready,), schedule)
        elif self._leads:
            self._of_schedules.ready.labels(*schedule).set(status == "True")

    def set_last_complete(self, schedule: tuple[str, str], at: datetime | None) -> None:
        """Report when the newest complete Backup of a ScheduledBackup ended; None if no complete Backup is kept."""
        if at is None:
            self._remove((self._of_schedules.last_complete,), schedule)
        elif self._leads:
            self._of_schedules.last_complete.labels(*schedule).set(at.timestamp())

    def forget_schedule(self, schedule: tuple[str, str]) -> None:
        """Remove the values of a ScheduledBackup that is gone."""
        self._remove((self._of_schedules.ready, self._of_schedules.last_complete), schedule)

    def forget_groups(self, cluster: tuple[str, str] | None = None) -> None:
        """Remove the values of a Cluster that is gone; without *cluster*, of all: another operator serves them."""
        for each in [cluster] if cluster else list(self._groups):
            self._drop(each, self._groups.pop(each, set()))
        if cluster is None:
            self._ready.clear()
            self._order.clear()
        else:
            self._remove((self._ready,), cluster)
            self.set_order(cluster, None)

    def _drop(self, cluster: tuple[str, str], indexes: Iterable[str]) -> None:
        of = self._of_groups
        for index in indexes:
            gauges = (of.has_leader, of.replicas, of.wanted, of.deadline, of.ends)
            self._remove(gauges, (*cluster, index))

    @staticmethod
    def _remove(gauges: Iterable[Gauge], labels: tuple[str, ...]) -> None:
        for gauge in gauges:
            with suppress(KeyError):  # the value was never set
                gauge.remove(*labels)
