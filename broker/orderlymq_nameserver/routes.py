"""
The registry behind every route: broker groups ("brokers" on the wire) and their topics.

Pure: connections are numbers, the caller gives the time. Rules kept here:
- An entry (broker name, id, address) lives as long as one connection that registered it: all replicas of a broker
  group register the same stable address as id 0, and the group is gone only when the last of them is.
- The topic table with the highest data version wins while an entry lives, because a replica that lags registers an
  older one.
- An ordered topic keeps its queues and addresses when its broker group is gone: a key is mapped to a queue by the
  number of queues, so a shorter list would move keys and break their order. It is removed only by a deletion, by a
  registration with a higher version that lacks the topic, or by the first one of a broker group restored from a
  backup. Deletions are not remembered after the group is gone: a replica that lags and registers first may
  bring a deleted topic back until a newer one registers. Remembering them would be worse, because a cluster that was
  created again under the same name starts at low versions.

`answers` has the queries; `processor` parses and answers requests.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from orderlymq_nameserver.answers import Answers
from orderlymq_nameserver.capacity import ADDRESS_BYTES, NotEntered, check_room, rows_bytes
from orderlymq_nameserver.registrations import (
    Broker,
    Entry,
    Identity,
    RoutedTopic,
    Session,
    filter_servers,
    keep_alive,
    living_addresses,
    queue_of,
    replaces_topics,
)
from orderlymq_protocol.body.catalogue import (
    MASTER_ID,
    PERM_READ,
    PERM_WRITE,
    DataVersion,
    QueueData,
    RegisterBrokerBody,
)

# A large cluster has some hundred broker names. Every query for a route goes through all of them.
BROKERS_MAX: Final = 4_096


class RouteRegistry(Answers):
    """All brokers and topics, changed by registrations and by closed connections.

    Attributes:
        is_changed: whether the result of `ordered` may have changed; the code that saves it resets this.

    Args:
        expiry_ms: a registration that was not renewed for this long is dropped, unless it announced its own limit.
        ordered_conf: as for `Answers`.
    """

    def __init__(self, *, expiry_ms: int, ordered_conf: Callable[[str], str | None]) -> None:
        super().__init__(ordered_conf=ordered_conf)
        self.is_changed = False
        self._expiry_ms = expiry_ms
        # Names that a connection has registered or kept alive, until it is closed. Clients, which come and go,
        # have no entry.
        self._names_of: dict[int, set[str]] = {}

    # Changes.

    def reserve(self, broker_name: str) -> None:
        """Reserve a name for brokers that sign; earlier unsigned registrations under it are dropped."""
        if broker_name not in self._reserved:
            self._reserved.add(broker_name)
            if self._brokers.pop(broker_name, None) is not None:
                self._forget_encoded()

    def ordered(self) -> dict[str, Broker]:
        """Return what reserved names publish when their broker groups are gone: addresses and ordered topics."""
        found: dict[str, Broker] = {}
        for name in sorted(self._reserved & self._brokers.keys()):
            broker = self._brokers[name]
            topics = {
                each: topic
                for each, topic in sorted(broker.topics.items())
                if self._is_ordered(each, topic)
            }
            if topics:
                found[name] = Broker(
                    broker.cluster,
                    last_addresses=broker.last_addresses,
                    topics=topics,
                    version=broker.version or broker.kept,
                    awaited=broker.awaited,
                    heard=broker.heard,
                    is_trusted=True,
                )
        return found

    def restore(self, brokers: Mapping[str, Broker]) -> None:
        """Publish what `ordered` returned in an earlier process, until the broker groups register newer data."""
        self._reserved.update(brokers)
        self._brokers.update(brokers)
        self.purge()

    def register(
        self,
        who: Identity,
        body: RegisterBrokerBody,
        *,
        ha_address: str,
        connection: int,
        now_ms: int,
        expiry_ms: int | None = None,
        is_trusted: bool = True,
        restored_with: frozenset[str] = frozenset(),
    ) -> None:
        """Add or renew a registration; the rules of the module decide whether its topics count.

        Until each of *restored_with* has registered once, ordered topics have no route. A broker that is not
        *is_trusted* waits for no other, because such a name may not exist, and no other waits for it.

        Raises:
            NotEntered: Another cluster has a living broker of this name, there are too many names, or there
                is no room; nothing has changed.
        """
        broker = self._brokers.get(who.broker_name)
        if broker is None:
            if len(self._brokers) >= BROKERS_MAX:
                raise NotEntered(
                    f"{len(self._brokers)} broker names are registered, which is the limit: stop "
                    "brokers that are not needed, or use another name server"
                )
            broker = Broker(who.cluster)
        elif broker.cluster != who.cluster and broker.entries:
            raise NotEntered(
                f"broker name {who.broker_name} belongs to cluster {broker.cluster}: give the "
                f"broker of cluster {who.cluster} another name"
            )
        replaces = replaces_topics(broker, who, connection, body.topics.data_version)
        topics = self._topics_after(broker, who, body, restored_with) if replaces else broker.topics
        size = self._size_after(broker, who, topics, body.filter_server_list)
        size += rows_bytes(restored_with) if is_trusted else 0
        self._check_room(who.broker_name, broker, size)
        before = _published(broker)
        broker.size = size
        broker.cluster = who.cluster
        self._brokers[who.broker_name] = broker

        # The same address under another id is the same process after a role change.
        for broker_id, entry in list(broker.entries.items()):
            if broker_id != who.broker_id and entry.address == who.address:
                del broker.entries[broker_id]
                broker.last_addresses.pop(broker_id, None)

        entry = self._entry(broker, who, ha_address)
        self._keep_alive(who, entry, connection, Session(now_ms, expiry_ms or self._expiry_ms))
        entry.ha_address = ha_address
        entry.filter_servers = body.filter_server_list
        broker.is_trusted = is_trusted
        if is_trusted:
            self._hear_restored(who.broker_name, broker, restored_with)
        self.is_changed |= broker.last_addresses.get(who.broker_id) != who.address
        broker.last_addresses[who.broker_id] = who.address
        if replaces:
            self.is_changed |= broker.version != body.topics.data_version
            broker.topics = topics
            broker.version, broker.kept = body.topics.data_version, None
            broker.is_version_of_master = who.broker_id == MASTER_ID
            broker.version_connection = connection
        # Each broker group registers again every few seconds, mostly without a change.
        if before != _published(broker):
            self._forget_encoded()

    def unregister(self, who: Identity, connection: int) -> None:
        """End the registration of *connection*; those of other connections under the same name stay."""
        entry = self._find(who)
        if entry is None or entry.sessions.pop(connection, None) is None:
            return
        others = self._brokers[who.broker_name].entries.values()
        if not any(connection in each.sessions for each in others):
            self._names_of[connection].discard(who.broker_name)
        self._drop_silent(who.broker_name)

    def is_reserved(self, broker_name: str) -> bool:
        """Return whether a broker that signs has used this name."""
        return broker_name in self._reserved

    def version(self, who: Identity) -> DataVersion | None:
        """Return the stored version of a known registration, None if it is unknown."""
        return None if self._find(who) is None else self._brokers[who.broker_name].version

    def renew(self, who: Identity, connection: int, now_ms: int) -> DataVersion | None:
        """Note a sign of life of a known registration; return its stored version, None if it is unknown."""
        entry = self._find(who)
        if entry is None:
            return None
        session = entry.sessions.get(connection)
        if session is None:
            # A replica that has reconnected and found its registration still alive.
            self._keep_alive(who, entry, connection, Session(now_ms, self._expiry_ms))
        else:
            session.seen_ms = now_ms
        return self._brokers[who.broker_name].version

    def connection_closed(self, connection: int) -> list[str]:
        """Drop a connection; return the names of the brokers that lost an address with it."""
        names = self._names_of.pop(connection, set())

        return self._end_sessions(lambda number, session: number == connection, names)

    def expire(self, now_ms: int) -> tuple[list[str], list[int]]:
        """Drop registrations that were silent for too long.

        Returns:
            The names of brokers that lost an address, and the connections to close.
        """
        silent: set[int] = set()

        def is_silent(number: int, session: Session) -> bool:
            if now_ms - session.seen_ms <= session.expiry_ms:
                return False
            silent.add(number)
            return True

        return self._end_sessions(is_silent, self._brokers), sorted(silent)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Delete a topic on all brokers, or on those of one cluster."""
        holders = [
            broker
            for broker in self._brokers.values()
            if topic in broker.topics and (cluster is None or broker.cluster == cluster)
        ]
        for broker in holders:
            del broker.topics[topic]
            broker.size -= rows_bytes([topic])
        if holders:
            self.purge()

    def add_queues(self, topic: str, queues: Iterable[QueueData]) -> None:
        """Add queues of a topic manually, on known brokers (code 217).

        Raises:
            NotEntered: The topic is ordered, or there is no room for it; nothing has changed.
        """
        if any(self._is_ordered(topic, known) for _, _, known in self._holders(topic)):
            raise NotEntered(
                f"topic[{topic}] is ordered, and other queues would move its keys: its queues are "
                "those that its brokers register; change the topic at the brokers"
            )
        known: list[tuple[Broker, QueueData, int]] = []
        for queue in queues:
            broker = self._brokers.get(queue.broker_name)
            if broker is not None and broker.entries:
                size = broker.size + (0 if topic in broker.topics else rows_bytes([topic]))
                self._check_room(queue.broker_name, broker, size)
                known.append((broker, queue, size))
        for broker, queue, size in known:
            counter = broker.version.counter if broker.version else 0
            broker.topics[topic] = RoutedTopic(queue, is_ordered=False, counter=counter)
            broker.size = size
        self._forget_encoded()

    def set_writable(self, broker_name: str, *, is_writable: bool) -> tuple[int, int]:
        """Set the write permission of a broker's topics; return how many change, and how many ordered ones stay.

        It lasts until the broker registers a changed topic table.
        """
        broker = self._brokers.get(broker_name)
        if broker is None or not broker.entries:
            return 0, 0
        topics = [
            topic for name, topic in broker.topics.items() if not self._is_ordered(name, topic)
        ]
        for topic in topics:
            perm = PERM_READ | PERM_WRITE if is_writable else topic.queue.perm & ~PERM_WRITE
            topic.queue = replace(topic.queue, perm=perm)
        self._forget_encoded()
        return len(topics), len(broker.topics) - len(topics)

    def purge(self) -> None:
        """Drop data that is no longer needed; call this when `ORDER_TOPIC_CONFIG` has changed."""
        self.is_changed = True
        for name in list(self._brokers):
            self._purge_broker(name)
        self._forget_encoded()

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken; for tests."""
        for name, broker in self._brokers.items():
            for entry in broker.entries.values():
                if not entry.sessions:
                    raise AssertionError(f"{name}: an entry lives without a connection")
                if not all(name in self._names_of.get(number, ()) for number in entry.sessions):
                    raise AssertionError(f"{name}: the end of a connection would not be noticed")
            if not broker.entries:
                for topic_name, topic in broker.topics.items():
                    if not self._is_ordered(topic_name, topic):
                        raise AssertionError(f"{name}: gone, but {topic_name} is still routed")
                if not broker.topics:
                    raise AssertionError(f"{name}: gone, with nothing to keep")

    # Parts.

    def _hear_restored(self, name: str, broker: Broker, groups: frozenset[str]) -> None:
        """Wait for those of *groups* that have never registered, and stop waiting for *name*, which registers here.

        Groups that another replica has named stay, because a replica that was not itself restored names none.
        """
        if groups:
            here = {each for each, known in self._brokers.items() if known.is_trusted}
            known = broker.awaited, broker.heard
            broker.heard |= groups & here
            broker.awaited = (broker.awaited | groups) - broker.heard
            self.is_changed |= (broker.awaited, broker.heard) != known
        for other in self._brokers.values():
            if name in other.awaited:
                other.awaited -= {name}
                other.heard |= {name}
                self.is_changed = True

    def _entry(self, broker: Broker, who: Identity, ha_address: str) -> Entry:
        entry = broker.entries.get(who.broker_id)
        if entry is None or entry.address != who.address:
            entry = broker.entries[who.broker_id] = Entry(who.address, ha_address)
        return entry

    def _find(self, who: Identity) -> Entry | None:
        broker = self._brokers.get(who.broker_name)
        if broker is None or broker.cluster != who.cluster:
            return None
        entry = broker.entries.get(who.broker_id)
        return entry if entry is not None and entry.address == who.address else None

    def _size_after(
        self, broker: Broker, who: Identity, topics: Iterable[str], servers: Iterable[str]
    ) -> int:
        """Return the size of a name with these topics, and with these filter servers at one address."""
        others = [entry for number, entry in broker.entries.items() if number != who.broker_id]
        size = ADDRESS_BYTES * len({*broker.last_addresses, who.broker_id})
        size += sum(rows_bytes(entry.filter_servers) for entry in others)
        return size + rows_bytes(topics) + rows_bytes(servers)

    def _check_room(self, name: str, broker: Broker, size: int) -> None:
        """Check that a name may have *size* bytes; brokers that sign are not counted.

        Raises:
            NotEntered: It may not.
        """
        if size <= broker.size or name in self._reserved:
            return
        check_room(name, size, self.unsigned_bytes - broker.size)

    def _topics_after(
        self, broker: Broker, who: Identity, body: RegisterBrokerBody, restored_with: frozenset[str]
    ) -> dict[str, RoutedTopic]:
        """Return the topics of a name after this registration; only its own if the known ones are another group's."""
        version = body.topics.data_version
        topics = {
            config.topic_name: RoutedTopic(
                queue_of(who.broker_name, config), config.order, version.counter
            )
            for config in body.topics.topic_config_table.values()
        }
        if _is_other(broker, version, is_restored=bool(restored_with)):
            return topics
        for name, known in broker.topics.items():
            if version.counter <= known.counter and self._is_ordered(name, known):
                # An ordered topic changes or is removed only by a higher version: the broker group may have come
                # back by a replica that does not know the latest change yet.
                newer = topics.get(name)
                if newer is None or version.counter < known.counter:
                    topics[name] = known
        return topics

    def _keep_alive(self, who: Identity, entry: Entry, connection: int, session: Session) -> None:
        keep_alive(entry, connection, session)
        self._names_of.setdefault(connection, set()).add(who.broker_name)

    def _end_sessions(
        self, ends: Callable[[int, Session], bool], names: Iterable[str]
    ) -> list[str]:
        lost: list[str] = []
        for name in sorted(names):
            broker = self._brokers.get(name)
            if broker is None:
                continue
            for entry in broker.entries.values():
                for number in [n for n, session in entry.sessions.items() if ends(n, session)]:
                    del entry.sessions[number]
            if broker.entries and self._drop_silent(name):
                lost.append(name)
        return lost

    def _drop_silent(self, name: str) -> bool:
        """Drop the entries of a broker that no connection keeps alive; return whether there were any."""
        broker = self._brokers[name]
        silent = [number for number, entry in broker.entries.items() if not entry.sessions]
        for number in silent:
            del broker.entries[number]
        if silent:
            if not broker.entries:
                # The next registration is accepted regardless of its version.
                broker.version = None
            self._purge_broker(name)
            self._forget_encoded()
        return bool(silent)

    def _purge_broker(self, name: str) -> None:
        broker = self._brokers[name]
        if broker.entries:
            return
        broker.topics = {
            topic_name: topic
            for topic_name, topic in broker.topics.items()
            if self._is_ordered(topic_name, topic)
        }
        broker.size = ADDRESS_BYTES * len(broker.last_addresses) + rows_bytes(broker.topics)
        if not broker.topics:
            del self._brokers[name]


def _is_other(broker: Broker, version: DataVersion, *, is_restored: bool) -> bool:
    """Return whether the data kept for a name without addresses comes from another broker group than the one registering.

    Counter and time of one broker group rise together. So a time later than the one kept from an earlier
    process of this name server has one of two reasons: a change that the name server has not seen, or a group
    that was created again and counts from the beginning. A broker group that was restored from a backup may
    be older in both.
    """
    if is_restored and broker.version is None:
        return True
    return broker.kept is not None and version.timestamp > broker.kept.timestamp


def _published(broker: Broker) -> tuple[object, ...]:
    """Return the part of a broker that answers show; a registration replaces its topics, never changes them."""
    addresses = dict(living_addresses(broker)), dict(broker.last_addresses)
    ha_addresses = [entry.ha_address for entry in broker.entries.values()]
    answers = addresses, ha_addresses, filter_servers(broker), broker.topics
    return broker.cluster, broker.awaited, answers
