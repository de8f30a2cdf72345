"""
The observed state of a Cluster, derived from its objects and their statuses.

Pure. The API server is reachable from everywhere, brokers are not. Rules: the operator's last report counts as the
current state. A ready pod counts as healthy, the pod with the leader's label as the leader, and a Ready object as
effective.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from orderlymq_operator.brokers.status import Peer, ReplicaStatus
from orderlymq_operator.brokers.tables import Tables
from orderlymq_operator.kube.objects.canary import canary_name
from orderlymq_operator.kube.objects.cluster import Environment, RaftGroupFacts
from orderlymq_operator.kube.observe.cluster import Live, observed_group, with_forms
from orderlymq_operator.kube.observe.desired import DesiredState
from orderlymq_operator.kube.observe.inventory import Item
from orderlymq_operator.kube.observe.pods import PodFacts
from orderlymq_operator.kube.reconcile.status import condition_of
from orderlymq_operator.kube.resources import DEPLOYMENTS, STATEFUL_SETS, Json
from orderlymq_operator.plan.actions import (
    ConsumerGroupConfig,
    Observed,
    ObservedNameServer,
    Subject,
    TopicConfig,
    UserConfig,
    topic_config,
)
from orderlymq_operator.plan.canary import CANARY_CONFIG
from orderlymq_operator.plan.placement import order_text
from orderlymq_operator.plan.planner import TEMPLATE, group_config, user_config
from orderlymq_operator.plan.settings import revision
from orderlymq_operator.resources.cluster.canary import (
    CANARY_PREFIX,
    CANARY_QUEUES,
    canary_topic,
)
from orderlymq_operator.resources.kinds import Cluster
from orderlymq_operator.resources.topic import PERMISSION_BITS
from orderlymq_protocol.names import AUTO_CREATE_TOPIC

# Secrets are not read; the forecast assumes that accounts keep their secrets.
_FINGERPRINT: Final = "as it is"
# Only the presence of the canary's consumer group counts: the canary makes it, and the operator deletes it.
_CANARY_GROUP: Final = ConsumerGroupConfig(True, True, 16, 1, 15)
# The settings of a topic that is being deleted; only its queues count.
_LEAVING: Final = TopicConfig(0, PERMISSION_BITS["ReadWrite"], order=False)


def observed_state(
    cluster: Cluster, present: DesiredState, live: Live, environment: Environment
) -> Observed:
    """Return the observed state of the objects in *present*; pods of *environment* have the settings of *cluster*."""
    started = [name for name in environment.groups if live.find(STATEFUL_SETS, name) is not None]
    layouts = _layouts(present)
    accounts = _accounts(present)
    consumers = _consumer_groups(present)
    if live.find(DEPLOYMENTS, canary_name(cluster)) is not None:
        consumers |= {CANARY_PREFIX: _CANARY_GROUP}
        layouts |= {canary_topic(name): ({name: CANARY_QUEUES}, CANARY_CONFIG) for name in started}
    groups = {}
    for name in started:
        form = environment.groups[name]
        topics = {AUTO_CREATE_TOPIC: TEMPLATE}  # no status contains this topic
        topics |= {
            topic: replace(config, queues=layout[name])
            for topic, (layout, config) in layouts.items()
            if name in layout
        }
        tables: Tables = (topics, consumers, accounts, {}, "")
        _tell(live, name, form)
        groups[name] = observed_group(
            live,
            name,
            form,
            tables,
            min_ready_s=0,
            current=environment.revision,
            wanted=revision(cluster),
        )
    lists = {
        topic: order_text(layout) for topic, (layout, config) in layouts.items() if config.order
    }
    return Observed(
        name_servers=with_forms(
            {
                index: ObservedNameServer(lists if _is_ready(pod) else None)
                for index, pod in live.name_server_pods().items()
            },
            live,
            environment,
        ),
        groups=groups,
        secrets=secrets_of(present),
    )


def secrets_of(state: DesiredState) -> Mapping[str, str | None]:
    """Return a fingerprint for the secret of every User; None if the operator has reported it as missing."""
    names = [user.metadata.name for user in state.desired.users]
    return {
        name: None if missing_secret(state.subjects[Subject("User", name)]) else _FINGERPRINT
        for name in names
    }


def missing_secret(item: Item) -> str:
    """Return the operator's report SecretMissing about the current generation of an object; empty if there is none."""
    ready = condition_of(item.status, "Ready") or {}
    is_current = ready.get("observedGeneration") == item.generation
    return str(ready["message"]) if is_current and ready["reason"] == "SecretMissing" else ""


def is_effective(item: Item) -> bool:
    """Return whether the operator has reported an object as Ready."""
    return any(
        each.get("type") == "Ready" and each.get("status") == "True"
        for each in item.status.get("conditions") or []
    )


def _tell(live: Live, group: str, form: RaftGroupFacts) -> None:
    """Set a status for every ready replica of a raft group, derived from its pod."""
    pods = {node: pod for node, pod in live.group_pods(group).items() if _is_ready(pod)}
    leading = [(pod.term, node) for node, pod in pods.items() if pod.leads]
    leader = max(leading)[1] if leading else None
    term = pods[leader].term if leader is not None else 0
    voters = frozenset(range(1, form.replicas + 1))
    for node, pod in pods.items():
        role = "leader" if node == leader else "follower"
        peers = {other: Peer(0, active=True) for other in pods}
        live.statuses[pod.name] = ReplicaStatus(role, term, leader, peers, voters)


def _is_ready(pod: PodFacts) -> bool:
    return pod.ready_since is not None and not pod.deleting


def _layouts(present: DesiredState) -> dict[str, tuple[dict[str, int], TopicConfig]]:
    """Return every topic that has queues: its queues by broker group, and its settings with the total of queues."""
    found = {}
    for topic in present.desired.topics:
        item = present.subjects[Subject("Topic", topic.metadata.name)]
        layout = _layout(item.status.get("queueLayout") or [])
        if layout:
            found[topic.topic_name] = (layout, topic_config(topic, sum(layout.values())))
    for item in present.leaving:
        layout = _layout(item.status.get("queueLayout") or [])
        name = item.status.get("topicName")
        if layout and name:
            found.setdefault(name, (layout, _LEAVING))
    return found


def _layout(parts: Iterable[Json]) -> dict[str, int]:
    return {part["group"]: part["queues"] for part in parts if part.get("queues")}


def _consumer_groups(present: DesiredState) -> dict[str, ConsumerGroupConfig]:
    return {
        group.group_name: group_config(group)
        for group in present.desired.consumer_groups
        if is_effective(present.subjects[Subject("ConsumerGroup", group.metadata.name)])
    }


def _accounts(present: DesiredState) -> dict[str, UserConfig]:
    return {
        user.access_key: user_config(user, _FINGERPRINT)
        for user in present.desired.users
        if is_effective(present.subjects[Subject("User", user.metadata.name)])
    }
