"""
An ideal cluster: actions succeed, elections end, learners catch up and consumers drain, and time passes as needed.

It begins as the observed state; `perform` and `settle` change it. Rule: it knows nothing that was not observed. A
raft group that did not answer stays unknown: a guess would forecast a second creation of what already exists.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from orderlymq_operator.plan.actions import (
    AbortExpansion,
    Action,
    AddLearner,
    ConsumerGroupConfig,
    CreateTopic,
    DeleteConsumerGroup,
    DeleteOrderConfig,
    DeleteTopic,
    DeleteUser,
    FenceTopic,
    Member,
    Observed,
    ObservedExpansion,
    ObservedGroup,
    ObservedNameServer,
    ObservedReplica,
    OfRaftGroup,
    PromoteReplica,
    PublishTopic,
    PutOrderConfig,
    Refuse,
    RemoveReplica,
    ReportCondition,
    RestartNameServer,
    RestartReplica,
    SetConsumerGroup,
    SetUser,
    StartNameServer,
    StartReplica,
    StopReplica,
    SwitchTopic,
    TopicConfig,
    TransferLeadership,
    UpdateTopic,
    UserConfig,
)
from orderlymq_operator.plan.expansion import expanding_topics, topics_under_way
from orderlymq_operator.plan.settings import name_server_revision, revision
from orderlymq_operator.resources.kinds import Desired

# The membership of a replica after each change.
_MEMBERS: Final[Mapping[type, Member]] = {
    AddLearner: "learner",
    PromoteReplica: "voter",
    RemoveReplica: "outside",
}
# Longer than any pause between two attempts of an expansion.
_LONG_AGO_MS: Final = 1 << 40


@dataclass(slots=True)
class IdealGroup:
    """One raft group.

    Attributes:
        known: whether its tables were observed, or it was created here.
    """

    leader: int | None = None
    replicas: dict[int, ObservedReplica] = field(default_factory=dict)
    topics: dict[str, TopicConfig] = field(default_factory=dict)
    consumer_groups: dict[str, ConsumerGroupConfig] = field(default_factory=dict)
    users: dict[str, UserConfig] = field(default_factory=dict)
    expansion: dict[str, ObservedExpansion] = field(default_factory=dict)
    known: bool = True

    def observed(self) -> ObservedGroup:
        """Return the raft group as a backend would observe it: without a leader its tables are not known."""
        if self.leader is None or not self.known:
            return ObservedGroup(self.leader, dict(self.replicas))
        return ObservedGroup(
            self.leader,
            dict(self.replicas),
            dict(self.topics),
            dict(self.consumer_groups),
            dict(self.users),
            dict(self.expansion),
        )


class IdealCluster:
    """The observed cluster while *desired* is carried out."""

    def __init__(self, desired: Desired, observed: Observed) -> None:
        self._desired = desired
        self._secrets = observed.secrets
        self._revision = revision(desired.cluster)
        self.servers: dict[int, ObservedNameServer] = dict(observed.name_servers)
        self.groups = {name: _group(found) for name, found in observed.groups.items()}
        under_way = topics_under_way(observed.groups)
        self._expanding = sorted({*expanding_topics(desired.topics), *under_way})
        for group in self.groups.values():
            for name in self._expanding:
                self._may_expand(group, name)

    def observed(self) -> Observed:
        """Return the present state; the desired state counts as accepted."""
        return Observed(
            self._desired,
            dict(self.servers),
            {name: group.observed() for name, group in self.groups.items()},
            {},
            self._secrets,
        )

    def settle(self) -> None:
        """Let time pass until nothing is under way."""
        for group in self.groups.values():
            for node, replica in group.replicas.items():
                caught_up = replica.member != "outside"
                group.replicas[node] = replace(
                    replica,
                    answers=replica.running,
                    healthy=replica.running,
                    caught_up=caught_up,
                    keeps_up=caught_up,
                    failing=False,
                    ended=False,
                    leaving=False,
                )
            _elect(group)
            for name, found in group.expansion.items():
                phase = "open" if found.phase == "settling" else found.phase
                # After an aborted attempt the pause is over; a fence never reaches its limit.
                age_ms = _LONG_AGO_MS if found.phase == "open" else 0
                group.expansion[name] = replace(found, phase=phase, age_ms=age_ms, blockers=())
        self._settle_name_servers()

    def _settle_name_servers(self) -> None:
        configs = [found.order_config for found in self.servers.values() if found.order_config]
        for index, server in self.servers.items():
            config = server.order_config
            if config is None and configs:
                config = configs[0]  # it comes back with the list from its file
            routes = {name: self._route(name) for name in self._expanding}
            self.servers[index] = ObservedNameServer(
                config, routes, revision=server.revision, serves_plain=server.serves_plain
            )

    def _route(self, topic: str) -> Mapping[str, int]:
        return {
            name: group.expansion[topic].write_queues
            for name, group in self.groups.items()
            if topic in group.expansion
        }

    # -- carrying out ---------------------------------------------------------------------------------------------

    def perform(self, action: Action) -> None:  # noqa: C901, PLR0912 - one line per kind
        """Carry out one action to its end."""
        match action:
            case StartNameServer(index):
                self.servers[index] = ObservedNameServer({})
            case RestartNameServer(index):
                cluster = self._desired.cluster
                self.servers[index] = replace(
                    self.servers[index],
                    revision=name_server_revision(cluster),
                    serves_plain=cluster.spec.tls.mode != "Enforcing",
                )
            case PutOrderConfig(topic, value):
                for index, config in self._lists():
                    self.servers[index] = replace(
                        self.servers[index], order_config={**config, topic: value}
                    )
            case DeleteOrderConfig(topic):
                for index, config in self._lists():
                    kept = {name: text for name, text in config.items() if name != topic}
                    self.servers[index] = replace(self.servers[index], order_config=kept)
            case OfRaftGroup():
                self._change_replicas(action)
            case FenceTopic() | AbortExpansion() | SwitchTopic() | PublishTopic():
                self._expand(action)
            case CreateTopic(topic, group, config) | UpdateTopic(topic, group, config):
                self.groups[group].topics[topic] = config
                if topic in self._expanding:
                    self._may_expand(self.groups[group], topic)
            case DeleteTopic(topic, group):
                self.groups[group].topics.pop(topic, None)
                self.groups[group].expansion.pop(topic, None)
            case SetConsumerGroup(name, group, settings):
                self.groups[group].consumer_groups[name] = settings
            case DeleteConsumerGroup(name, group):
                self.groups[group].consumer_groups.pop(name, None)
            case SetUser(_, key, group, account):
                self.groups[group].users[key] = account
            case DeleteUser(key, group):
                self.groups[group].users.pop(key, None)
            case ReportCondition() | Refuse():
                pass  # they change nothing

    def _lists(self) -> list[tuple[int, Mapping[str, str]]]:
        return [
            (index, server.order_config)
            for index, server in self.servers.items()
            if server.order_config is not None
        ]

    def _change_replicas(
        self,
        action: StartReplica
        | RestartReplica
        | StopReplica
        | AddLearner
        | PromoteReplica
        | RemoveReplica
        | TransferLeadership,
    ) -> None:
        match action:
            case StartReplica(name, node, join):
                self._start(name, node, join=join)
            case RestartReplica(name, node):
                group = self.groups[name]
                group.replicas[node] = replace(group.replicas[node], revision=self._revision)
            case StopReplica(name, node):
                self.groups[name].replicas.pop(node, None)
            case AddLearner(name, node) | PromoteReplica(name, node) | RemoveReplica(name, node):
                group = self.groups[name]
                member = _MEMBERS[type(action)]
                group.replicas[node] = replace(group.replicas[node], member=member)
            case TransferLeadership(name, target):
                self.groups[name].leader = target

    def _start(self, name: str, node: int, *, join: bool) -> None:
        if name not in self.groups:
            nodes = range(1, self._desired.cluster.spec.replicas_per_group + 1)
            self.groups[name] = IdealGroup(
                replicas={first: ObservedReplica("voter") for first in nodes}
            )
        group = self.groups[name]
        known = group.replicas.get(node, ObservedReplica("outside" if join else "voter"))
        group.replicas[node] = replace(known, running=True, join=join, revision=self._revision)

    def _expand(self, action: FenceTopic | AbortExpansion | SwitchTopic | PublishTopic) -> None:
        group = self.groups[action.group]
        found = group.expansion.get(action.topic, ObservedExpansion())
        match action:
            case FenceTopic(_, _, attempt, total, queues):
                found = replace(
                    found,
                    phase="fenced",
                    next_total=total,
                    queues=queues,
                    attempt=attempt,
                    age_ms=0,
                    reason="",
                )
            case AbortExpansion(_, _, attempt, reason):
                found = replace(found, phase="open", attempt=attempt, reason=reason, age_ms=0)
            case SwitchTopic(topic, _, attempt, total, config, readers):
                found = ObservedExpansion(
                    "switched",
                    total=total,
                    write_queues=config.queues,
                    attempt=attempt,
                    readers=readers,
                )
                group.topics[topic] = config
            case PublishTopic():
                found = replace(found, phase="settling", age_ms=0)
        group.expansion[action.topic] = found

    def _may_expand(self, group: IdealGroup, topic: str) -> None:
        """Mark a topic as open for an expansion; brokers are asked about it only if the manifest allows one."""
        if topic in group.topics:
            known = ObservedExpansion(write_queues=group.topics[topic].queues)
            group.expansion.setdefault(topic, known)


def _group(found: ObservedGroup) -> IdealGroup:
    return IdealGroup(
        found.leader,
        dict(found.replicas),
        dict(found.topics or {}),
        dict(found.consumer_groups or {}),
        dict(found.users or {}),
        dict(found.expansion),
        known=found.topics is not None,
    )


def _elect(group: IdealGroup) -> None:
    voters = [node for node, replica in group.replicas.items() if replica.member == "voter"]
    healthy = [node for node in voters if group.replicas[node].healthy]
    if group.leader not in healthy:
        group.leader = min(healthy) if len(healthy) > len(voters) // 2 else None
