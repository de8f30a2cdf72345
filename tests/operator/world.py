"""
A small world in which plans are carried out without processes, at once or step by step.

It follows the rules of a real group: topics and groups need a leader, a joining replica is outside until it is added, and to
remove a leader is a broken rule. `check` has what must always be true.
"""

from dataclasses import dataclass, field, replace

from orderlymq_operator.plan.actions import (
    Action,
    AddLearner,
    ConditionReport,
    ConsumerGroupConfig,
    CreateTopic,
    DeleteConsumerGroup,
    DeleteOrderConfig,
    DeleteTopic,
    Observed,
    ObservedGroup,
    ObservedNameServer,
    ObservedReplica,
    PromoteReplica,
    PutOrderConfig,
    Refuse,
    RemoveReplica,
    ReportCondition,
    RestartReplica,
    SetConsumerGroup,
    StartNameServer,
    StartReplica,
    StopReplica,
    Subject,
    TopicConfig,
    TransferLeadership,
    UpdateTopic,
)
from orderlymq_operator.plan.planner import plan
from orderlymq_operator.plan.settings import revision
from orderlymq_operator.resources.kinds import Desired

PASSES_MAX = 60


@dataclass
class WorldGroup:
    leader: int | None = None
    replicas: dict[int, ObservedReplica] = field(default_factory=dict)
    topics: dict[str, TopicConfig] = field(default_factory=dict)
    consumer_groups: dict[str, ConsumerGroupConfig] = field(default_factory=dict)

    def observed(self) -> ObservedGroup:
        if self.leader is None:
            return ObservedGroup(None, dict(self.replicas))
        return ObservedGroup(
            self.leader, dict(self.replicas), dict(self.topics), dict(self.consumer_groups), {}
        )

    def voters(self) -> list[int]:
        return [node for node, item in self.replicas.items() if item.member == "voter"]


@dataclass
class World:
    accepted: Desired | None = None
    order_config: dict[str, str] = field(default_factory=dict)
    name_servers: set[int] = field(default_factory=set)
    groups: dict[str, WorldGroup] = field(default_factory=dict)
    conditions: dict[Subject, ConditionReport] = field(default_factory=dict)
    history: list[Action] = field(default_factory=list)

    def observed(self) -> Observed:
        return Observed(
            self.accepted,
            {index: ObservedNameServer(dict(self.order_config)) for index in self.name_servers},
            {name: group.observed() for name, group in self.groups.items()},
            dict(self.conditions),
        )

    def settle(self, desired: Desired) -> list[Action]:
        """Carry out plans until nothing is left to do; return all actions."""
        self.accepted = desired
        done: list[Action] = []
        for _ in range(PASSES_MAX):
            actions = plan(desired, self.observed())
            if not actions:
                return done
            self.check_touches(actions)
            for action in actions:
                self.perform(action, desired)
            self.heal()
            done += actions
        raise AssertionError(f"no end after {PASSES_MAX} passes: {actions}")

    def heal(self) -> None:
        """Let time pass: elections end, learners catch up, restarted replicas come back."""
        for group in self.groups.values():
            for node, item in group.replicas.items():
                caught_up = item.member != "outside"
                group.replicas[node] = replace(item, healthy=item.running, caught_up=caught_up)
            healthy = [node for node in group.voters() if group.replicas[node].healthy]
            if group.leader not in healthy:
                majority = len(healthy) > len(group.voters()) // 2
                group.leader = min(healthy) if majority and healthy else None

    def check_touches(self, actions: list[Action]) -> None:
        """Check that at most one replica of a group is touched, while every other voter is well."""
        touched: dict[str, int] = {}
        for action in actions:
            match action:
                case (
                    RestartReplica(group, node)
                    | StopReplica(group, node)
                    | AddLearner(group, node)
                    | PromoteReplica(group, node)
                    | RemoveReplica(group, node)
                    | TransferLeadership(group, node)
                    | StartReplica(group, node, True)
                ):
                    if isinstance(action, StartReplica) and node in self.groups[group].replicas:
                        continue  # A missing process may be started at any time.
                    assert group not in touched, f"two replicas of {group}: {actions}"
                    touched[group] = node
                case _:
                    pass

    def perform(self, action: Action, desired: Desired) -> None:  # noqa: C901, PLR0912 - one per kind
        self.history.append(action)
        match action:
            case StartNameServer(index):
                assert index not in self.name_servers
                self.name_servers.add(index)
            case StartReplica(name, node, join):
                self._start(name, node, desired, join=join)
            case RestartReplica(name, node):
                group = self.groups[name]
                assert node != group.leader or len(group.voters()) == 1, "a leader was restarted"
                others = [other for other in group.voters() if other != node]
                assert all(group.replicas[other].healthy for other in others)
                group.replicas[node] = replace(
                    group.replicas[node], healthy=False, revision=revision(desired.cluster)
                )
            case StopReplica(name, node):
                assert self.groups[name].replicas[node].member == "outside"
                del self.groups[name].replicas[node]
            case AddLearner(name, node):
                self._member(name, node, "outside", "learner")
            case PromoteReplica(name, node):
                assert self.groups[name].replicas[node].caught_up
                self._member(name, node, "learner", "voter")
            case RemoveReplica(name, node):
                assert self.groups[name].leader != node, "the leader was removed"
                item = self.groups[name].replicas[node]
                self.groups[name].replicas[node] = replace(item, member="outside")
            case TransferLeadership(name, target):
                assert self.groups[name].replicas[target].healthy
                assert self.groups[name].replicas[target].member == "voter"
                self.groups[name].leader = target
            case PutOrderConfig(topic, value):
                self.order_config[topic] = value
            case DeleteOrderConfig(topic):
                del self.order_config[topic]
            case CreateTopic(topic, name, config):
                assert topic not in self.groups[name].topics
                assert not config.order or topic in self.order_config, "the list comes first"
                self.groups[name].topics[topic] = config
            case UpdateTopic(topic, name, config):
                before = self.groups[name].topics[topic]
                assert not before.order or before.queues == config.queues, "ordered queues changed"
                assert before.queues <= config.queues, "queues were taken away"
                self.groups[name].topics[topic] = config
            case DeleteTopic(topic, name):
                del self.groups[name].topics[topic]
            case SetConsumerGroup(consumer_group, name, config_):
                self.groups[name].consumer_groups[consumer_group] = config_
            case DeleteConsumerGroup(consumer_group, name):
                del self.groups[name].consumer_groups[consumer_group]
            case ReportCondition(subject, condition):
                self.conditions[subject] = condition
            case Refuse():
                raise AssertionError(f"refused: {action}")

    def _start(self, name: str, node: int, desired: Desired, *, join: bool) -> None:
        if name not in self.groups:
            nodes = range(1, desired.cluster.spec.replicas_per_group + 1)
            self.groups[name] = WorldGroup(
                replicas={first: ObservedReplica("voter") for first in nodes}
            )
        group = self.groups[name]
        known = group.replicas.get(node)
        assert known is None or not known.running
        member = known.member if known else "outside" if join else "voter"
        group.replicas[node] = ObservedReplica(
            member, running=True, join=join, revision=revision(desired.cluster)
        )

    def _member(self, name: str, node: int, before: str, after: str) -> None:
        group = self.groups[name]
        item = group.replicas[node]
        assert item.member == before
        assert all(group.replicas[other].healthy for other in group.voters())
        group.replicas[node] = replace(item, member="voter" if after == "voter" else "learner")
