"""
Answers of the name server from the registry: routes, brokers, topics, and its tables for a status page.

Pure. Rules kept here:
- If brokers that sign have an ordered topic, others add no queues to its route.
- The writable queues of an ordered topic are those of its queue list: while its topic is read-only,
  a broker itself refuses sends (code 16).
- After a restore, no route shows only part of the queues of an ordered topic: it has no route until
  all broker groups that were restored together are known (`awaits`).
- Lists are sorted, and equal on every name server, because some clients take "the n-th queue" without sorting.

`routes` changes the registry.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Final

from orderlymq_nameserver.registrations import (
    Broker,
    RoutedTopic,
    as_listed,
    filter_servers,
    listed_groups,
    living_addresses,
)
from orderlymq_protocol.body.catalogue import (
    MASTER_ID,
    BrokerData,
    ClusterInfo,
    QueueData,
    TopicList,
    TopicRouteData,
)
from orderlymq_protocol.names import TOPIC_LENGTH_MAX

# The rows of each table of the status page: some milliseconds and 300 KB, while all clients are served, in a pod
# of 256 MiB.
ROWS_SHOWN_MAX: Final = 1_000
# Filter servers shown for one address, and characters of each. RocketMQ's brokers had one or two.
_SERVERS_SHOWN_MAX: Final = 2
_SERVER_LENGTH_MAX: Final = 255
# Cached encoded routes: 32,000 topics of three broker groups.
ENCODED_BYTES_MAX: Final = 16 << 20


class Answers:
    """All known brokers and topics, and the queries on them.

    Args:
        ordered_conf: returns the administrators' `ORDER_TOPIC_CONFIG` of a topic, None if there is none.

    Attributes:
        changes: how often an answer may have changed.
    """

    def __init__(self, *, ordered_conf: Callable[[str], str | None]) -> None:
        self._ordered_conf = ordered_conf
        self._brokers: dict[str, Broker] = {}
        # Names of brokers that sign; names are only added while this process runs, never removed.
        self._reserved: set[str] = set()
        # Encoded answers of 105, by topic, because every client asks for every topic twice a minute. Also lists
        # of topics, which any client may request, by their parameters.
        self._encoded: dict[str | tuple[str | None, int, int], bytes] = {}
        self._encoded_bytes = 0
        self._awaits_any: bool | None = None  # None: unknown since the last change
        self.changes = 0
        self._counted = -1, 0  # the number of changes at the count, and of topics

    @property
    def unsigned_bytes(self) -> int:
        """The memory that brokers without signatures take."""
        return sum(each.size for name, each in self._brokers.items() if name not in self._reserved)

    def encoded_route(self, topic: str) -> bytes | None:
        """Return the encoded result of `route`, from the cache if nothing has changed."""
        try:
            return self._encoded[topic]
        except KeyError:
            pass
        route = self.route(topic)
        if route is None:
            return None  # not cached: a client may ask for any number of unknown names
        return self._kept(topic, route.to_json())

    def encoded_brokers(self, topic: str) -> bytes | None:
        """Return the encoded result of `route` without the queues: only the brokers that have the topic."""
        route = self.route(topic)
        return None if route is None else replace(route, queue_datas=()).to_json()

    def route(self, topic: str) -> TopicRouteData | None:
        """Return the brokers and queues of a topic, None if no broker has it."""
        queues: list[QueueData] = []
        brokers: list[BrokerData] = []
        filters: dict[str, tuple[str, ...]] = {}
        holders, conf = self._holders(topic), self._order_conf(topic)
        listed = listed_groups(conf or "") & {name for name, _, _ in holders}
        for name, broker, found in holders:
            queues.append(as_listed(found.queue, listed) if listed else found.queue)
            brokers.append(BrokerData(broker.cluster, name, self._addresses(broker, topic, found)))
            filters.update(filter_servers(broker))
        if not queues:
            return None
        return TopicRouteData(tuple(queues), tuple(brokers), conf, filters)

    def awaited(self, broker_name: str) -> frozenset[str]:
        """Return the broker groups that were restored together with this one and have never registered."""
        broker = self._brokers.get(broker_name)
        return frozenset() if broker is None else broker.awaited

    def awaits(self, topic: str) -> bool:
        """Return whether a broker group that has never registered may have queues of this ordered or unknown topic."""
        if self._awaits_any is None:
            self._awaits_any = any(broker.awaited for broker in self._brokers.values())
        if not self._awaits_any:
            return False
        holders = self._holders(topic)
        return not holders or any(
            self._is_ordered(topic, found) and broker.awaited for _, broker, found in holders
        )

    def cluster_info(self) -> ClusterInfo:
        """Return the living brokers by name and the names of each cluster."""
        table: dict[str, BrokerData] = {}
        clusters: dict[str, list[str]] = {}
        for name, broker in self._living():
            table[name] = BrokerData(broker.cluster, name, living_addresses(broker))
            clusters.setdefault(broker.cluster, []).append(name)
        return ClusterInfo(
            table, {cluster: tuple(names) for cluster, names in sorted(clusters.items())}
        )

    def members(self, cluster: str, broker_name: str) -> BrokerData:
        """Return the addresses of one broker name; none if it is not known in that cluster."""
        broker = self._brokers.get(broker_name)
        if broker is None or broker.cluster != cluster:
            return BrokerData(cluster, broker_name, {})
        return BrokerData(cluster, broker_name, living_addresses(broker))

    def master(self, broker_name: str) -> tuple[str, str] | None:
        """Return the address and the replication address of id 0."""
        broker = self._brokers.get(broker_name)
        entry = None if broker is None else broker.entries.get(MASTER_ID)
        return None if entry is None else (entry.address, entry.ha_address)

    def encoded_topics(
        self, *, cluster: str | None = None, mask: int = 0, wanted: int = 0
    ) -> bytes:
        """Return the encoded result of `topics`, from the cache if nothing has changed."""
        key = cluster, mask, wanted
        try:
            return self._encoded[key]
        except KeyError:
            pass
        encoded = TopicList(tuple(self.topics(cluster=cluster, mask=mask, wanted=wanted))).to_json()
        if cluster is None or any(each.cluster == cluster for each in self._brokers.values()):
            return self._kept(key, encoded)
        return encoded  # not cached: a client may ask for any number of unknown names

    def topics(self, *, cluster: str | None = None, mask: int = 0, wanted: int = 0) -> list[str]:
        """Return the names of topics, of one cluster or all, whose system flag has the *wanted* bits of *mask*."""
        return sorted(
            {
                name
                for broker in self._brokers.values()
                if cluster is None or broker.cluster == cluster
                for name, topic in broker.topics.items()
                if topic.queue.topic_sys_flag & mask == wanted
            }
        )

    def topic_count(self) -> int:
        """Return how many topics there are; counted once after each change, because scrapes ask often."""
        if self._counted[0] != self.changes:
            names = set[str]().union(*(broker.topics for broker in self._brokers.values()))
            self._counted = self.changes, len(names)
        return self._counted[1]

    def dump(self, now_ms: int) -> dict[str, object]:
        """Return the five tables of RocketMQ's name server for `/status`, with the first `ROWS_SHOWN_MAX` rows of each."""
        living = self._living()
        rows = list(
            islice(
                (
                    (name, broker, number, entry)
                    for name, broker in living
                    for number, entry in sorted(broker.entries.items())
                ),
                ROWS_SHOWN_MAX,
            )
        )
        addresses: dict[str, dict[int, str]] = {}
        clusters: dict[str, list[str]] = {}
        for name, broker, number, entry in rows:
            if name not in addresses:
                clusters.setdefault(broker.cluster, []).append(name)
            addresses.setdefault(name, {})[number] = entry.address
        return {
            "brokers": len(living),
            "topics": self.topic_count(),
            "topicQueueTable": self._shown_queues(),
            "brokerAddrTable": {
                name: BrokerData(self._brokers[name].cluster, name, found).to_json_value()
                for name, found in addresses.items()
            },
            "clusterAddrTable": dict(sorted(clusters.items())),
            "brokerLiveTable": {
                entry.address: {
                    "brokerName": name,
                    "brokerId": number,
                    "connections": len(entry.sessions),
                    "silentMillis": now_ms - max(each.seen_ms for each in entry.sessions.values()),
                    "dataVersion": None if broker.version is None else broker.version.counter,
                }
                for name, broker, number, entry in rows
            },
            "filterServerTable": {
                entry.address: [
                    each[:_SERVER_LENGTH_MAX] for each in entry.filter_servers[:_SERVERS_SHOWN_MAX]
                ]
                for _, _, _, entry in rows
                if entry.filter_servers
            },
        }

    def _shown_queues(self) -> dict[str, dict[str, object]]:
        """Return the queues of topics by broker name, with as many rows as `dump` shows."""
        rows = (
            (topic_name, name, topic)
            for name, broker in sorted(self._brokers.items())
            for topic_name, topic in broker.topics.items()
            if len(topic_name) <= TOPIC_LENGTH_MAX
        )
        queues: dict[str, dict[str, object]] = {}
        for topic_name, name, topic in islice(rows, ROWS_SHOWN_MAX):
            shown = topic.queue.to_json_value() | {"order": topic.is_ordered}
            queues.setdefault(topic_name, {})[name] = shown
        return dict(sorted(queues.items()))

    # Parts.

    def _kept(self, key: str | tuple[str | None, int, int], encoded: bytes) -> bytes:
        """Cache an answer until something changes and return it; if there is no room, it replaces all others."""
        if self._encoded_bytes + len(encoded) > ENCODED_BYTES_MAX:
            self._drop_encoded()
        self._encoded[key] = encoded
        self._encoded_bytes += len(encoded)
        return encoded

    def _forget_encoded(self) -> None:
        """Drop cached results after a change."""
        self.changes += 1
        self._awaits_any = None
        self._drop_encoded()

    def _drop_encoded(self) -> None:
        self._encoded.clear()
        self._encoded_bytes = 0

    def _is_ordered(self, name: str, topic: RoutedTopic) -> bool:
        return topic.is_ordered or self._ordered_conf(name) is not None

    def _addresses(self, broker: Broker, name: str, topic: RoutedTopic) -> Mapping[int, str]:
        living = living_addresses(broker)
        if not self._is_ordered(name, topic):
            return living
        if not living:
            return broker.last_addresses
        # Without id 0 a Java producer ignores the broker's queues.
        if MASTER_ID not in living and MASTER_ID in broker.last_addresses:
            return {MASTER_ID: broker.last_addresses[MASTER_ID], **living}
        return living

    def _order_conf(self, name: str) -> str | None:
        conf = self._ordered_conf(name)
        if conf is not None:
            return conf
        counts = [
            f"{broker_name}:{topic.queue.write_queue_nums}"
            for broker_name, _, topic in self._holders(name)
            if topic.is_ordered
        ]
        return ";".join(counts) or None

    def _holders(self, name: str) -> list[tuple[str, Broker, RoutedTopic]]:
        """Return the brokers that have a topic.

        If one that signs has it as an ordered topic, others add no queues, because keys would move to them.
        """
        found = [
            (broker_name, broker, topic)
            for broker_name, broker in sorted(self._brokers.items())
            if (topic := broker.topics.get(name)) is not None
        ]
        signing = [each for each in found if each[0] in self._reserved]
        if any(self._is_ordered(name, topic) for _, _, topic in signing):
            return signing
        return found

    def _living(self) -> list[tuple[str, Broker]]:
        return sorted((name, broker) for name, broker in self._brokers.items() if broker.entries)
