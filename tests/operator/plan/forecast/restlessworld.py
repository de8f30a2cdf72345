"""
A world in which a change takes time: lists per name server, accounts, expanding topics, and trouble.

Brokers that expand are those of `expandingworld`. `happened` has each difference, found by comparing the world before and
after each action; it does not know what the action was meant to do.
"""

from dataclasses import dataclass, field, replace
from random import Random

from orderlymq_operator.plan.actions import (
    AbortExpansion,
    Action,
    CreateTopic,
    DeleteOrderConfig,
    DeleteTopic,
    DeleteUser,
    FenceTopic,
    Observed,
    ObservedExpansion,
    ObservedGroup,
    ObservedNameServer,
    PublishTopic,
    PutOrderConfig,
    ReportCondition,
    SetUser,
    StartNameServer,
    SwitchTopic,
    UserConfig,
)
from orderlymq_operator.plan.expansion import expanding_topics, topics_under_way
from orderlymq_operator.plan.planner import plan
from orderlymq_operator.resources.kinds import Desired
from tests.operator.plan.expandingworld import Broker
from tests.operator.plan.forecast.foretold import Fact
from tests.operator.world import World

STEP_MS = 5_000
PASSES_MAX = 900


@dataclass
class RestlessWorld(World):
    """A small world; trouble comes only with *random*, otherwise everything works the first time."""

    random: Random | None = None
    elections: bool = False
    lists: dict[int, dict[str, str]] = field(default_factory=dict)
    accounts: dict[str, dict[str, UserConfig]] = field(default_factory=dict)
    brokers: dict[tuple[str, str], Broker] = field(default_factory=dict)
    secrets: dict[str, str | None] = field(default_factory=dict)
    happened: set[Fact] = field(default_factory=set)
    restarts: list[str] = field(default_factory=list)
    now_ms: int = 0
    told: Desired | None = None
    expanding: frozenset[str] = frozenset()

    # -- what the operator sees

    def observed(self) -> Observed:
        groups = {name: self._seen(name) for name in self.groups}
        self.expanding = topics_under_way(groups)
        routes = {topic: self._route(topic) for _, topic in self.brokers}
        servers = {
            index: ObservedNameServer()
            if self._trouble(0.1)
            else ObservedNameServer(dict(config), routes)
            for index, config in self.lists.items()
        }
        return Observed(self.accepted, servers, groups, dict(self.conditions), dict(self.secrets))

    def _seen(self, name: str) -> ObservedGroup:
        found = self.groups[name].observed()
        if found.topics is None or self._trouble(0.1):
            return ObservedGroup(None, found.replicas)
        asked = set(() if self.told is None else expanding_topics(self.told.topics))
        asked |= self.expanding
        expansion: dict[str, ObservedExpansion] = {}
        for (group, topic), broker in self.brokers.items():
            state = broker.observed(self.now_ms, online=True)
            if group == name and state is not None and (topic in asked or broker.phase != "open"):
                expansion[topic] = state
        return replace(found, users=dict(self.accounts.get(name, {})), expansion=expansion)

    def _route(self, topic: str) -> dict[str, int]:
        return {
            group: broker.registered
            for (group, name), broker in self.brokers.items()
            if name == topic and broker.registered
        }

    def _trouble(self, share: float) -> bool:
        return self.random is not None and self.random.random() < share

    # -- what is done

    def settle(self, desired: Desired) -> list[Action]:
        self.accepted = self.told = desired
        done: list[Action] = []
        for _ in range(PASSES_MAX):
            actions = plan(desired, self.observed())
            self.check_touches(actions)
            if self._trouble(0.2):
                assert self.random is not None
                actions = actions[: self.random.randrange(len(actions) + 1)]
            for action in actions:
                self.perform(action, desired)
            self.pass_time()
            work = [action for action in actions if not isinstance(action, ReportCondition)]
            done += work
            if not work and self._has_arrived(desired):
                return done
        raise AssertionError(f"no end: {actions}")

    def _has_arrived(self, desired: Desired) -> bool:
        """Return whether an observer who sees everything has nothing to do and nothing to wait for."""
        if any(broker.phase != "open" for broker in self.brokers.values()):
            return False
        if any(not r.healthy for group in self.groups.values() for r in group.replicas.values()):
            return False
        chance, self.random = self.random, None
        left = plan(desired, self.observed())
        self.random = chance
        return all(isinstance(action, ReportCondition) for action in left)

    def perform(self, action: Action, desired: Desired) -> None:
        if isinstance(action, ReportCondition):
            self.conditions[action.subject] = action.condition
            return
        before = self._picture()
        self._do(action, desired)
        after = self._picture()
        self.happened |= {
            key for key in before.keys() | after.keys() if before.get(key) != after.get(key)
        }
        for name, group in self.groups.items():
            for node, replica in group.replicas.items():
                known = before.get(("revision", f"{name}/{node}", ""))
                if known is not None and known != replica.revision:
                    self.restarts.append(f"{name}/{node}")

    def _do(self, action: Action, desired: Desired) -> None:
        match action:
            case StartNameServer(index):
                super().perform(action, desired)
                self.lists[index] = {}
            case PutOrderConfig(topic, value):
                self.order_config[topic] = value
                for config in self.lists.values():
                    config[topic] = value
            case DeleteOrderConfig(topic):
                self.order_config.pop(topic, None)
                for config in self.lists.values():
                    config.pop(topic, None)
            case SetUser(_, key, group, account):
                self.accounts.setdefault(group, {})[key] = account
            case DeleteUser(key, group):
                del self.accounts[group][key]
            case FenceTopic() | AbortExpansion() | SwitchTopic() | PublishTopic():
                self._expand(action)
            case CreateTopic(topic, group, config):
                super().perform(action, desired)
                if config.order:
                    self._broker(group, topic).grow(config.queues)
            case DeleteTopic(topic, group):
                super().perform(action, desired)
                self.brokers.pop((group, topic), None)
            case _:
                super().perform(action, desired)

    def _broker(self, group: str, topic: str) -> Broker:
        return self.brokers.setdefault((group, topic), Broker())

    def _expand(self, action: FenceTopic | AbortExpansion | SwitchTopic | PublishTopic) -> None:
        broker = self._broker(action.group, action.topic)
        broker.perform(action, self.now_ms)
        if isinstance(action, SwitchTopic):
            topics = self.groups[action.group].topics
            own = topics[action.topic].attributes if action.topic in topics else ()
            config = replace(action.config, queues=broker.writes, attributes=own)
            topics[action.topic] = config

    # -- what the world does

    def pass_time(self) -> None:
        self.now_ms += STEP_MS
        lagging = {
            (name, node)
            for name, group in self.groups.items()
            for node in group.replicas
            if self._trouble(0.2)
        }
        before = {name: dict(group.replicas) for name, group in self.groups.items()}
        self.heal()
        for name, node in lagging & {(n, k) for n, g in before.items() for k in g}:
            group = self.groups[name]
            if not before[name][node].healthy:
                group.replicas[node] = replace(group.replicas[node], healthy=False, caught_up=False)
                if group.leader == node:
                    group.leader = None
        if self.elections and self._trouble(0.3):
            self._elect()
        for broker in self.brokers.values():
            broker.tick(self.now_ms)
            broker.committed = [len(queue) for queue in broker.queues]

    def _elect(self) -> None:
        assert self.random is not None
        for group in self.groups.values():
            fit = [node for node in group.voters() if group.replicas[node].healthy]
            if fit and len(fit) > len(group.voters()) // 2:
                group.leader = self.random.choice(fit)

    def _picture(self) -> dict[Fact, object]:
        """Return everything that may change, by name."""
        found: dict[Fact, object] = {("server", str(index), ""): True for index in self.lists}
        for name, group in self.groups.items():
            if group.leader is not None:
                found["lead", name, ""] = group.leader
            for node, item in group.replicas.items():
                place = f"{name}/{node}"
                found["replica", place, ""] = item.running
                found["revision", place, ""] = item.revision
                found["member", place, ""] = item.member
            for topic, config in group.topics.items():
                found["topic", topic, name] = config
            for each, rules in group.consumer_groups.items():
                found["group", each, name] = rules
            for key, account in self.accounts.get(name, {}).items():
                found["user", key, name] = account
        for (group_name, topic), broker in self.brokers.items():
            found["fence", topic, group_name] = broker.phase
        for config_ in self.lists.values():
            for topic, text in config_.items():
                found["list", topic, text] = True
        return found
