"""
Routes of topics: the last answers of the name servers, and the queue lists made from them.

Rule: the list that keys are hashed over does not depend on which brokers are alive. An ordered topic's list comes
from its declaration (`orderTopicConf`). In other topics a broker without a leader keeps its queues, while Java's
client drops them and moves keys. A restarted name server does not know the topics of a broker group without a leader,
so a topic's last route is kept for its senders. Pure; `instance` asks and stores the answers.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from orderlymq_protocol.body.catalogue import (
    MASTER_ID,
    PERM_READ,
    PERM_WRITE,
    TopicRouteData,
    declared_queues,
)
from orderlymq_protocol.body.messagequeue import MessageQueue


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """The queues of one topic, in Java's order: broker name, then queue id.

    Attributes:
        publish: queues to send to.
        subscribe: queues to consume.
        is_ordered: the list was declared and cannot shrink.
    """

    publish: tuple[MessageQueue, ...]
    subscribe: tuple[MessageQueue, ...]
    is_ordered: bool


NO_ROUTE: Final = TopicRoute((), (), is_ordered=False)


def topic_route(topic: str, data: TopicRouteData) -> TopicRoute:
    """Make the queue lists of a route answer."""
    queue_datas = sorted(data.queue_datas, key=lambda each: each.broker_name)
    declared = parse_order_conf(data.order_topic_conf)
    writable = (
        {each.broker_name: each.write_queue_nums for each in queue_datas if each.perm & PERM_WRITE}
        if declared is None
        else declared
    )
    readable = {
        each.broker_name: each.read_queue_nums for each in queue_datas if each.perm & PERM_READ
    }
    return TopicRoute(_queues(topic, writable), _queues(topic, readable), declared is not None)


def parse_order_conf(text: str | None) -> dict[str, int] | None:
    """Read `broker-a:4;broker-b:4`; return None if there is no usable declaration."""
    if not text:
        return None
    found: dict[str, int] = {}
    for part in text.split(";"):
        name, count = declared_queues(part)
        if name and count is not None:
            found[name] = count
    return found or None


def template_route(topic: str, template: TopicRoute, queue_max: int) -> TopicRoute:
    """Return the route that *topic* will have when a send creates it from the template topic."""
    counts: dict[str, int] = {}
    for queue in template.publish:
        counts[queue.broker_name] = min(queue_max, counts.get(queue.broker_name, 0) + 1)
    queues = _queues(topic, counts)
    return TopicRoute(queues, queues, is_ordered=False)


def _queues(topic: str, counts: Mapping[str, int]) -> tuple[MessageQueue, ...]:
    return tuple(
        MessageQueue(topic, name, number)
        for name in sorted(counts)
        for number in range(counts[name])
    )


class Routes:
    """All known routes by topic, and addresses by broker name."""

    def __init__(self) -> None:
        self._topics: dict[str, TopicRoute] = {}
        self._former: dict[str, TopicRoute] = {}
        self._datas: dict[str, TopicRouteData] = {}
        self._addresses: dict[str, dict[int, str]] = {}
        self._naming: Counter[str] = Counter()  # number of present routes that name a broker

    @property
    def topics(self) -> tuple[str, ...]:
        """Topics with a route."""
        return tuple(self._topics)

    def get(self, topic: str) -> TopicRoute | None:
        """Return the route of a topic, if one is known."""
        return self._topics.get(topic)

    def update(self, topic: str, data: TopicRouteData) -> bool:
        """Store a route answer; return whether the queues changed."""
        for broker in data.broker_datas:
            self._addresses[broker.broker_name] = dict(broker.broker_addrs)
        fresh = topic_route(topic, data)
        changed = self._topics.get(topic) != fresh
        self._count(topic, -1)
        self._topics[topic] = fresh
        self._datas[topic] = data
        self._count(topic, 1)
        return changed

    def forget(self, topic: str) -> None:
        """Drop a topic that no name server knows; keep its last route and addresses for its senders."""
        self._count(topic, -1)
        route = self._topics.pop(topic, None)
        if route is not None:
            self._former[topic] = route
        self._datas.pop(topic, None)

    def former(self, topic: str) -> TopicRoute | None:
        """Return the last route of a topic that was dropped, if there was one."""
        return self._former.get(topic)

    def address(self, broker_name: str) -> str | None:
        """Return the address of the broker's leader according to the latest route that names the broker."""
        return self._addresses.get(broker_name, {}).get(MASTER_ID)

    def brokers(self, topic: str) -> tuple[str, ...]:
        """Return the broker names of a topic's route."""
        data = self._datas.get(topic)
        return () if data is None else tuple(each.broker_name for each in data.broker_datas)

    def addresses(self, topics: Iterable[str] | None = None) -> set[str]:
        """Return the addresses of the brokers that present routes name, or of those in the routes of *topics*.

        A declared broker group counts even if it is away. A removed one does not count,
        though `address` remembers it.
        """
        names = (
            self._naming
            if topics is None
            else {name for topic in topics for name in self.brokers(topic)}
        )
        return {address for name in names for address in self._addresses.get(name, {}).values()}

    def _count(self, topic: str, by: int) -> None:
        """Count the brokers that a topic's route names; an operator of `Counter` would go over all brokers."""
        for name in self._names(topic):
            self._naming[name] += by
            if not self._naming[name]:
                del self._naming[name]

    def _names(self, topic: str) -> set[str]:
        """Return the brokers that a topic's route names, including a declared one that is away."""
        names = set(self.brokers(topic))
        route = self._topics.get(topic)
        if route is not None:
            names.update(queue.broker_name for queue in (*route.publish, *route.subscribe))
        return names
