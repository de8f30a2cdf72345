"""The chart's alerts, evaluated over the series of outages; pods that are gone report nothing themselves."""

import re
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from orderlymq_operator.kube.certificates.schedule import CertificateSet
from orderlymq_operator.kube.health import Health
from orderlymq_operator.kube.metrics import OperatorMetrics
from orderlymq_operator.plan.actions import ObservedGroup, ObservedReplica
from tests.operator.promql import Labels, Vector, evaluate, evaluate_history

_FILE = Path(__file__).parents[3] / "charts" / "orderlymq" / "files" / "alerts.yaml"
_ALERTS: dict[str, str] = {
    rule["alert"]: rule["expr"].replace("RELEASE_NAMESPACE", "ops")
    for group in yaml.safe_load(_FILE.read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
}
_OUTAGE = (
    "OrderlyMQGroupWithoutLeader",
    "OrderlyMQReplicaMissing",
    "OrderlyMQNoOperatorLeads",
    "OrderlyMQClusterNotReady",
    "OrderlyMQClusterNotScraped",
)
_GROUP = {"namespace": "shop", "orderlymq_io_cluster": "demo", "orderlymq_io_group": "0"}
_CLUSTER = ("shop", "demo")


def _labels(**labels: str) -> Labels:
    return frozenset(labels.items())


def _operator(
    metrics: OperatorMetrics, namespace: str = "ops", pod: str = "operator"
) -> dict[str, Vector]:
    """Return the series that Prometheus keeps of an operator's page, with the page's own labels."""
    found: dict[str, Vector] = {}
    for family in text_string_to_metric_families(generate_latest(metrics.registry).decode()):
        for sample in family.samples:
            key = _labels(**{"pod": pod, "namespace": namespace, **sample.labels})
            found.setdefault(sample.name, {})[key] = sample.value
    return found


def _brokers(serving: list[int]) -> dict[str, Vector]:
    """Return the series of brokers: whether each one serves."""
    series = {
        _labels(**_GROUP, pod=f"demo-0-{index}"): float(value)
        for index, value in enumerate(serving)
    }
    return {"orderlymq_is_serving": series} if series else {}


def _sees(metrics: OperatorMetrics, healthy: int, leader: int | None) -> None:
    replicas = {node: ObservedReplica("voter", healthy=node <= healthy) for node in range(1, 4)}
    metrics.set_groups(_CLUSTER, {"demo-0": ObservedGroup(leader, replicas)}, ["demo-0"], 3)
    metrics.set_ready(_CLUSTER, ready=healthy == 3)


def _firing(*series: dict[str, Vector]) -> set[str]:
    every: dict[str, Vector] = {}
    for each in series:
        for name, vector in each.items():
            every.setdefault(name, {}).update(vector)
    return {name for name in _OUTAGE if evaluate(_ALERTS[name], every)}


@pytest.fixture
def metrics() -> OperatorMetrics:
    """The metrics of an operator that leads and finds three replicas well."""
    made = OperatorMetrics()
    made.set_leading(leads=True)
    _sees(made, 3, leader=1)
    return made


def test_nothing_fires_while_all_is_well(metrics: OperatorMetrics) -> None:
    """Law: no alert fires while all is well, nor if only the operator misses the leader that brokers see."""
    assert _firing(_operator(metrics), _brokers([0, 1, 0])) == set()

    _sees(metrics, 3, leader=None)
    assert _firing(_operator(metrics), _brokers([0, 1, 0])) == set()


def test_a_total_outage_is_loud(metrics: OperatorMetrics) -> None:
    """Law: a total outage of brokers fires an alert from the operator's metrics, with the group's labels."""
    _sees(metrics, 0, leader=None)
    series = _operator(metrics)

    assert _firing(series) == {
        "OrderlyMQGroupWithoutLeader",
        "OrderlyMQReplicaMissing",
        "OrderlyMQClusterNotReady",
        "OrderlyMQClusterNotScraped",
    }
    assert list(evaluate(_ALERTS["OrderlyMQGroupWithoutLeader"], series)) == [_labels(**_GROUP)]

    metrics.set_groups(_CLUSTER, {}, ["demo-0"], 3)
    assert _firing(_operator(metrics)) == _firing(series)


def test_an_outage_of_everything_is_loud() -> None:
    """Law: if the operator is gone too, the alert that no operator leads fires."""
    assert _firing() == {"OrderlyMQNoOperatorLeads"}


def test_a_late_reconcile_of_who_leads_no_more_silences_no_alert(metrics: OperatorMetrics) -> None:
    """Law: an operator that lost its lease silences no alert with a late, old answer of its brokers."""
    metrics.set_leading(leads=False)
    _sees(metrics, 3, leader=1)
    second = OperatorMetrics()
    second.set_leading(leads=True)
    _sees(second, 0, leader=None)
    alone = _firing(_operator(second))

    assert "OrderlyMQGroupWithoutLeader" in alone
    assert _firing(_operator(metrics, pod="former"), _operator(second)) == alone


def test_an_operator_that_leads_elsewhere_does_not_stand_for_that_of_a_release(
    metrics: OperatorMetrics,
) -> None:
    """Law: each release has its own alert; an operator of another release does not silence it."""
    assert _firing(_operator(metrics, "elsewhere"), _brokers([1])) == {"OrderlyMQNoOperatorLeads"}
    standby = OperatorMetrics()
    standby.set_leading(leads=False)
    every = _operator(metrics, pod="a"), _operator(standby, pod="b"), _brokers([1])
    assert _firing(*every) == set()


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("OrderlyMQFrequentLeaderElections", "orderlymq_term"),
        ("OrderlyMQHalfMessagesGivenUp", "orderlymq_transactions_given_up"),
    ],
)
def test_a_replica_that_begins_empty_is_no_event_of_its_group(name: str, metric: str) -> None:
    """Law: a replica that starts empty (its counters show 0) is no event; growth in the whole group is."""

    def at(time_s: float, *, grows: bool) -> dict[str, Vector]:
        told = 57.0 + (time_s // 60 if grows else 0)
        values = {"a": told, "b": told, "c": 0.0 if time_s < 100 else told}
        return {metric: {_labels(**_GROUP, pod=pod): value for pod, value in values.items()}}

    for now in range(0, 3_600, 30):
        assert not evaluate_history(_ALERTS[name], partial(at, grows=False), now)
    assert list(evaluate_history(_ALERTS[name], partial(at, grows=True), 3_600)) == [
        _labels(**_GROUP)
    ]


def test_a_group_that_lost_its_leader_is_reported_by_its_brokers_alone() -> None:
    """Law: a group without a leader is reported from its brokers' metrics, without an operator."""
    assert "OrderlyMQGroupWithoutLeader" in _firing(_brokers([0, 0]))


def test_one_replica_that_is_missing_is_reported(metrics: OperatorMetrics) -> None:
    """Law: one missing replica is reported, however long it is missing."""
    _sees(metrics, 2, leader=1)

    assert _firing(_operator(metrics), _brokers([1, 0])) == {
        "OrderlyMQReplicaMissing",
        "OrderlyMQClusterNotReady",
    }


def test_brokers_that_nobody_scrapes_are_reported(metrics: OperatorMetrics) -> None:
    """Law: brokers that nobody scrapes are reported, because all alerts about their queues are silent."""
    series = _operator(metrics)

    assert _firing(series) == {"OrderlyMQClusterNotScraped"}
    (labels,) = evaluate(_ALERTS["OrderlyMQClusterNotScraped"], series)
    assert labels == _labels(namespace="shop", orderlymq_io_cluster="demo")


def test_who_looks_after_nothing_reports_nothing(metrics: OperatorMetrics) -> None:
    """Law: a deleted Cluster, or one that another operator has taken over, is no outage."""
    _sees(metrics, 0, leader=None)
    metrics.set_groups(_CLUSTER, {}, [], 3)
    metrics.set_ready(_CLUSTER, ready=True)
    without_group = _firing(_operator(metrics), _brokers([1]))
    _sees(metrics, 0, leader=None)
    metrics.forget_groups(_CLUSTER)
    without_cluster = _firing(_operator(metrics))
    _sees(metrics, 0, leader=None)
    metrics.forget_groups()

    assert without_group == without_cluster == _firing(_operator(metrics)) == set()


def test_certificates_that_end_soon_are_reported_once_per_group(metrics: OperatorMetrics) -> None:
    """Law: certificates past five sixths of their life are reported once per group,
    until newer ones run or the Cluster is gone.
    """
    begins = datetime(2026, 1, 1, tzinfo=UTC)
    made = CertificateSet(1, 1, frozenset({1}), begins, begins + timedelta(days=360))
    newer = CertificateSet(2, 1, frozenset({1}), made.ends, made.ends + timedelta(days=360))
    metrics.set_certificates(_CLUSTER, {"demo-0": made}, ["demo-0"])

    def firing(days: float) -> list[Labels]:
        now = (begins + timedelta(days=days)).timestamp()
        return list(evaluate(_ALERTS["OrderlyMQCertificateEndsSoon"], _operator(metrics), now))

    assert firing(299) == []
    assert firing(301) == firing(400) == [_labels(**_GROUP, pod="operator")]
    metrics.set_certificates(_CLUSTER, {"demo-0": newer}, ["demo-0"])
    assert firing(400) == []
    metrics.set_certificates(_CLUSTER, {"demo-0": made}, ["demo-0"])
    metrics.forget_groups(_CLUSTER)
    assert firing(400) == []
    metrics.set_certificates(_CLUSTER, {"demo-0": made}, ["demo-0"])
    metrics.set_certificates(_CLUSTER, {}, ["demo-0"])
    assert firing(400) == []


def _firing_orders(*series: dict[str, Vector]) -> set[str]:
    every: dict[str, Vector] = {}
    for each in series:
        for name, vector in each.items():
            every.setdefault(name, {}).update(vector)
    return {
        name
        for name in ("OrderlyMQOrderBroken", "OrderlyMQOrderNotVerified")
        if evaluate(_ALERTS[name], every)
    }


def _canary(verdict: str) -> dict[str, Vector]:
    """Return the series of a canary's page."""
    rows: Vector = {
        _labels(
            namespace="shop", orderlymq_io_cluster="demo", pod="demo-canary", status=status
        ): float(status == verdict)
        for status in ("True", "False", "Unknown")
    }
    return {"orderlymq_canary_order_verified": rows}


def test_a_canary_that_is_gone_is_reported(metrics: OperatorMetrics) -> None:
    """Law: a missing canary is reported once, by the operator's metrics, and only where a canary is wanted."""
    metrics.set_order(_CLUSTER, "Unknown")
    silent = _operator(metrics)
    found = evaluate(_ALERTS["OrderlyMQOrderNotVerified"], {**silent, **_canary("Unknown")})
    metrics.set_order(_CLUSTER, "False")
    broken = _operator(metrics)
    metrics.set_order(_CLUSTER, "True")
    kept = _operator(metrics)
    metrics.set_order(_CLUSTER, None)
    without = _operator(metrics)
    metrics.set_order(_CLUSTER, "Unknown")
    metrics.forget_groups(_CLUSTER)

    assert _firing_orders(silent) == {"OrderlyMQOrderNotVerified"}
    assert list(found) == [_labels(namespace="shop", orderlymq_io_cluster="demo")]
    assert _firing_orders(broken) == {"OrderlyMQOrderBroken"}
    assert _firing_orders(kept, _canary("True")) == _firing_orders(without) == set()
    assert _firing_orders(_operator(metrics)) == set()
    assert _firing_orders(kept, _canary("Unknown")) == {"OrderlyMQOrderNotVerified"}


def test_a_schedule_without_backups_is_reported(metrics: OperatorMetrics) -> None:
    """Law: a schedule without recent Backups is reported until the next complete one; not if suspended,
    gone or another operator's.
    """
    night, other = ("shop", "nightly"), ("shop", "weekly")
    metrics.set_schedule(other, "True", "Scheduled")

    def firing() -> list[Labels]:
        return list(evaluate(_ALERTS["OrderlyMQScheduledBackupFails"], _operator(metrics)))

    for reason in ("BackupFailed", "BackupOverdue", "Invalid", "ApiRefused"):
        metrics.set_schedule(night, "False", reason)
        assert firing() == [_labels(namespace="shop", scheduled_backup="nightly")]
    metrics.set_schedule(night, "True", "Scheduled")
    assert firing() == []
    metrics.set_schedule(night, "False", "BackupFailed")
    metrics.set_schedule(night, "False", "Suspended")
    assert firing() == []
    metrics.set_schedule(night, "False", "BackupFailed")
    metrics.forget_schedule(night)
    assert firing() == []
    metrics.set_schedule(night, "False", "BackupFailed")
    metrics.set_leading(leads=False)
    metrics.set_schedule(night, "False", "BackupFailed")
    assert firing() == []


@pytest.mark.parametrize(
    ("objective", "bad", "fires"),
    [
        (0.999, 0.02, True),
        (0.999, 0.01, False),
        (0.93, 0.99, True),
        (0.9, 1.0, True),
        (0.9, 0.5, False),
        (0.5, 1.0, True),
        (0.5, 0.6, False),
    ],
)
def test_every_objective_that_is_allowed_has_a_budget_that_can_burn(
    objective: float, bad: float, *, fires: bool
) -> None:
    """Law: for every allowed objective the burn alert can fire; it must fire if every message fails."""

    def at(time_s: float) -> dict[str, Vector]:
        cluster = {"namespace": "shop", "orderlymq_io_cluster": "demo"}
        shares = {"good": 1 - bad, "failed": bad}
        return {
            "orderlymq_canary_objective": {_labels(**cluster): objective},
            "orderlymq_canary_probes_total": {
                _labels(**cluster, outcome=name): 2 * time_s * share
                for name, share in shares.items()
            },
        }

    found = evaluate_history(_ALERTS["OrderlyMQCanaryBudgetBurns"], at, 7_200)
    assert bool(found) is fires


@pytest.mark.parametrize("interval_s", [5, 60, 360, 3_600])
def test_an_operator_is_stale_when_it_missed_rounds_at_any_interval(
    metrics: OperatorMetrics, interval_s: float
) -> None:
    """Law: an operator counts as stale by missed rounds, whatever the chart's interval is."""
    metrics.last_resync.set(1_000.0)
    metrics.resync_limit.set(Health(interval_s).stale_s)

    def fires(age_s: float) -> bool:
        return bool(
            evaluate(_ALERTS["OrderlyMQOperatorResyncStale"], _operator(metrics), 1_000.0 + age_s)
        )

    assert not fires(2 * interval_s)
    assert fires(max(301, 3 * interval_s + 61))
    metrics.set_leading(leads=False)
    assert not fires(1e6)


@pytest.mark.parametrize("name", _ALERTS)
def test_an_alert_asks_how_much_only_what_never_falls_has_grown(name: str) -> None:
    """Law: an alert uses increase() only with counters; a total alone would never end,
    and a falling gauge would count as a restart.
    """
    expression = _ALERTS[name]
    grown = re.findall(r"\b(?:rate|increase)\((\w+)", expression)
    totals = re.findall(r"\b\w+_(?:total|bucket)\b", expression)

    assert sorted(grown) == sorted(totals)


def test_a_lane_that_stands_still_is_reported_and_one_that_waits_for_its_time_is_not() -> None:
    """Law: a lane that stands still is reported; a parked one, which comes back itself, is not,
    and a held one has its own alert.
    """
    ages = {
        "inHand": 700.0,
        "ready": 700.0,
        "deadLettering": 500.0,
        "parked": 900.0,
        "held": 5_000.0,
    }
    series: Vector = {
        _labels(**_GROUP, group="billing", state=state, pod="demo-0-1"): age
        for state, age in ages.items()
    }

    found = evaluate(_ALERTS["OrderlyMQLaneStuck"], {"orderlymq_lane_oldest_seconds": series})

    assert {dict(labels)["state"] for labels in found} == {"inHand", "ready"}
