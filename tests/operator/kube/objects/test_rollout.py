"""The schema's words about restarts agree with the code that decides which pods are replaced."""

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from orderlymq_operator.kube.objects.cluster import (
    group_set,
    kube_revision,
    name_server_revision,
    name_server_set,
)
from orderlymq_operator.kube.observe.cluster import Live
from orderlymq_operator.kube.reconcile.accepted import image_of
from orderlymq_operator.plan.settings import live_options
from orderlymq_operator.resources.cluster.cluster import Cluster, ClusterSpec
from orderlymq_operator.resources.cluster.console import AccountsSecret, ConsoleIngress
from orderlymq_operator.resources.cluster.network import Peer
from orderlymq_operator.resources.cluster.rollout import FIXED, LIVE_SETTINGS, SPECIAL, restarts
from orderlymq_operator.resources.cluster.security import InternalIssuer, PagesToken
from orderlymq_operator.resources.crd import schema
from orderlymq_operator.resources.pod.template import PodTemplate
from orderlymq_operator.resources.quantities import Duration, Quantity
from orderlymq_operator.resources.workload import Toleration
from tests.operator.kube.samples import IMAGE, cluster, environment

# Values for fields whose default does not show their type.
_OTHERS: dict[str, Any] = {
    "retention.size": Quantity("3Gi"),
    "security.internalIssuer": InternalIssuer(secret_name="ours"),
    "security.pagesToken": PagesToken(secret_name="ours"),
    "network.clients": [Peer(namespace="team")],
    "network.monitoring": [Peer(namespace="team")],
    "placement.tolerations": [Toleration(key="mine")],
    "placement.nodeSelector": {"disk": "fast"},
    "config.fileReservedTime": 3,
    "podTemplate": PodTemplate(labels={"team": "ours"}),
    "addressQuotas.requestsPerSecond": 100,
    "addressQuotas.bytesPerSecond": Quantity("1Mi"),
    "addressQuotas.connections": 100,
    "resources.requests.memory": Quantity("300Mi"),
    "console.accounts": AccountsSecret(secret_name="ours"),
    "console.ingress": ConsoleIngress(host="mq.example.com"),
}


def _fields(
    model: BaseModel, names: tuple[str, ...] = (), path: str = ""
) -> Iterator[tuple[tuple[str, ...], str, Any]]:
    """Yield each leaf field: its Python names, its path in a manifest, its value."""
    for name, field in type(model).model_fields.items():
        where = f"{path}.{field.alias or name}" if path else field.alias or name
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            yield from _fields(value, (*names, name), where)
        else:
            yield (*names, name), where, value


def _other(path: str, value: Any) -> Any:
    if path in _OTHERS:
        return _OTHERS[path]
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case Duration():
            return Duration("77h")
        case Quantity():
            return Quantity("33Gi")
        case list():
            return ["other"]
        case _:
            return "other" if not path.endswith("lockMaxLiveTime") else 90_000


def _changed(model: Any, names: tuple[str, ...], value: Any) -> Any:
    """Return *model* with another value of one field, whether or not it fits to the others."""
    head, *rest = names
    inner = _changed(getattr(model, head), tuple(rest), value) if rest else value
    return model.model_copy(update={head: inner})


def _restarted(before: Cluster, after: Cluster) -> str:
    live = Live()
    images = [image_of(each, live, IMAGE) for each in (before, after)]
    brokers = kube_revision(before, images[0]) != kube_revision(after, images[1])
    servers = name_server_revision(before, images[0]) != name_server_revision(after, images[1])
    both = [name for name, is_new in (("brokers", brokers), ("name servers", servers)) if is_new]
    return " and ".join(both) or "nothing"


_CHANGED = [
    each
    for each in _fields(ClusterSpec())
    if not any(f"{each[1]}.".startswith(f"{listed}.") for listed in (*FIXED, *SPECIAL))
]


@pytest.mark.parametrize(("names", "path", "value"), _CHANGED, ids=[each[1] for each in _CHANGED])
def test_the_schema_says_what_a_changed_field_restarts(
    names: tuple[str, ...], path: str, value: Any
) -> None:
    """Law: the table of restarts is right for every field; a new or moved field must change its line."""
    before = cluster()

    after = before.model_copy(update={"spec": _changed(before.spec, names, _other(path, value))})

    assert _restarted(before, after) == restarts(path)


@pytest.mark.parametrize(("names", "path", "value"), _CHANGED, ids=[each[1] for each in _CHANGED])
def test_what_is_live_reaches_the_settings_of_pods_that_wait_for_their_restart(
    names: tuple[str, ...], path: str, value: Any
) -> None:
    """Law: exactly the live settings reach pods that wait for their restart."""
    before = cluster()

    after = before.model_copy(update={"spec": _changed(before.spec, names, _other(path, value))})

    assert (live_options(after) != live_options(before)) == (path in LIVE_SETTINGS)


def test_brokers_of_every_image_read_the_same_settings_again() -> None:
    """
    Law: brokers of every image since 0.1.0 reload the same settings.

    A setting that only later images reload would have no effect on a kept image, and Clusters would restart with an
    operator's upgrade. So it restarts brokers until brokers report what they reload.
    """
    since_0_1_0 = {
        "retention.time",
        "config.autoCreateSubscriptionGroup",
        "config.autoCreateTopicEnable",
        "config.brokerPermission",
        "config.defaultTopicQueueNums",
        "config.diskMaxUsedSpaceRatio",
        "config.enablePropertyFilter",
        "config.fileReservedTime",
        "config.maxMessageSize",
        "config.recallMessageEnable",
        "config.rejectTransactionMessage",
        "config.timerMaxDelaySec",
        "config.timerWheelEnable",
        "config.transactionCheckInterval",
        "config.transactionCheckMax",
        "config.transactionTimeOut",
    }
    assert set(LIVE_SETTINGS) == since_0_1_0


def test_a_larger_disk_restarts_brokers_only_where_retention_follows_it() -> None:
    """Law: a larger disk restarts brokers only if retention follows its size."""
    larger = {"storage": {"size": "40Gi"}}
    kept = {"retention": {"size": "3Gi"}}

    assert _restarted(cluster(), cluster(**larger)) == "brokers"
    assert _restarted(cluster(**kept), cluster(**larger, **kept)) == "nothing"


def test_every_field_of_the_schema_says_it() -> None:
    """Law: the description of each field, for kubectl explain, says what a change restarts."""
    spec = schema("Cluster")["properties"]["spec"]["properties"]

    assert spec["groups"]["description"].endswith("Live: a change restarts nothing.")
    assert spec["network"]["description"].endswith("Live: a change restarts nothing.")
    assert spec["config"]["properties"]["logLevel"]["description"].endswith(
        "A change restarts brokers and name servers."
    )
    assert spec["retention"]["properties"]["time"]["description"].endswith(
        "Live: a change restarts nothing."
    )
    assert spec["lock"]["properties"]["leaseSeconds"]["description"].endswith(
        "A change restarts brokers."
    )
    assert "restart" not in spec["local"]["properties"]["host"]["description"]


@pytest.mark.parametrize("lost", [("demo-0",), ("demo-0", "demo-1"), ("demo-nameserver",)])
def test_the_loss_of_statefulsets_gives_no_pod_another_image(lost: tuple[str, ...]) -> None:
    """Law: if StatefulSets are lost, but one is left, a new operator's image rolls nothing."""
    shop, live = cluster(groups=2), Live()
    around_it = environment(shop)
    groups = [group_set(shop, name, around_it) for name in shop.group_names]
    for made in (name_server_set(shop, around_it), *groups):
        if made["metadata"]["name"] not in lost:
            live.put(made)

    assert image_of(shop, live, "orderlymq:new") == IMAGE
