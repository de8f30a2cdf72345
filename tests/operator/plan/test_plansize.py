"""How often a plan looks at each object, by their number."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from orderlymq_operator.plan.actions import ReportCondition
from orderlymq_operator.plan.planner import plan
from tests.operator.examples import desired, group, topic
from tests.operator.world import World


class _Counted(tuple[Any, ...]):
    """Objects that count each time one of them is handed out."""

    looks = 0

    def __iter__(self) -> Iterator[Any]:
        for each in super().__iter__():
            self.looks += 1
            yield each


class _Table(dict[str, Any]):
    """A table that counts its look-ups."""

    looks = 0

    def __getitem__(self, name: str) -> Any:
        self.looks += 1
        return super().__getitem__(name)

    def get(self, name: str, other: Any = None) -> Any:
        self.looks += 1
        return super().get(name, other)

    def __contains__(self, name: object) -> bool:
        self.looks += 1
        return super().__contains__(name)


def _looks(count: int) -> int:
    """Return how often a plan with *count* Topics and ConsumerGroups looks at one, if nothing is to be done."""
    names = [f"topic-{number}" for number in range(count)]
    groups = [group(f"group-{name}", topics=[{"name": name}]) for name in names]
    wanted = desired(*map(topic, names), *groups, groups=2)
    world = World()
    world.settle(wanted)
    seen = world.observed()
    found: list[_Table] = []

    def counted(table: Any) -> _Table:
        found.append(_Table(table))
        return found[-1]

    tables = {
        name: replace(
            each, topics=counted(each.topics), consumer_groups=counted(each.consumer_groups)
        )
        for name, each in seen.groups.items()
    }
    servers = {
        index: replace(each, order_config=counted(each.order_config))
        for index, each in seen.name_servers.items()
    }
    topics, consumer_groups = _Counted(wanted.topics), _Counted(wanted.consumer_groups)
    said = replace(wanted, topics=topics, consumer_groups=consumer_groups)

    assert plan(said, replace(seen, groups=tables, name_servers=servers)) == []
    return topics.looks + consumer_groups.looks + sum(table.looks for table in found)


def test_a_plan_looks_at_each_object_as_often_whatever_their_number() -> None:
    """Law: the work of a plan grows in proportion to its objects: ten times as many cost ten times as much."""
    assert _looks(40) <= 10 * _looks(4)


def test_a_changed_topic_is_the_only_one_of_which_a_plan_says_something() -> None:
    """Law: a plan has steps and reports only for the changed topic."""
    names = [f"topic-{number}" for number in range(20)]
    world = World()
    world.settle(desired(*map(topic, names)))
    changed = topic("topic-7", permission="ReadOnly")
    others = [topic(name) for name in names if name != "topic-7"]

    found = plan(desired(*others, changed), world.observed())

    about = {
        step.subject.name if isinstance(step, ReportCondition) else getattr(step, "topic", "")
        for step in found
    }
    assert about == {"topic-7"}
