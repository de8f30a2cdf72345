"""
Registrations of one broker name: its addresses, the connections that keep them alive, and its topics.

Pure. `routes` uses it to decide what is routed.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace

from orderlymq_nameserver.capacity import SESSIONS_MAX
from orderlymq_protocol.body.catalogue import (
    MASTER_ID,
    PERM_PRIORITY,
    PERM_WRITE,
    DataVersion,
    QueueData,
    TopicConfig,
)


@dataclass(frozen=True, slots=True)
class Identity:
    """The registering broker: one address under one id of a broker name."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str


@dataclass(slots=True)
class RoutedTopic:
    """A topic on one broker; *counter* is the data version at which it was last registered."""

    queue: QueueData
    is_ordered: bool
    counter: int


@dataclass(slots=True)
class Session:
    """One connection that keeps an entry alive."""

    seen_ms: int
    expiry_ms: int


@dataclass(slots=True)
class Entry:
    """One address of a broker."""

    address: str
    ha_address: str
    sessions: dict[int, Session] = field(default_factory=dict)
    filter_servers: tuple[str, ...] = ()


@dataclass(slots=True)
class Broker:
    """A broker name: its living addresses and its topics; without addresses the broker is gone."""

    cluster: str
    entries: dict[int, Entry] = field(default_factory=dict)
    # The addresses in the routes of ordered topics when the broker is gone.
    last_addresses: dict[int, str] = field(default_factory=dict)
    topics: dict[str, RoutedTopic] = field(default_factory=dict)
    version: DataVersion | None = None
    is_version_of_master: bool = False
    version_connection: int = 0  # the connection that registered it
    # The version of topics that an earlier process of this name server knew, until the name registers.
    kept: DataVersion | None = None
    # Of the broker groups that were restored together with this one, those that have never registered, and those
    # that have. Until the last one has, an ordered topic may have more queues.
    awaited: frozenset[str] = frozenset()
    heard: frozenset[str] = frozenset()
    is_trusted: bool = False  # it belongs to the cluster, as far as can be known
    size: int = 0  # in bytes, see `capacity`


def keep_alive(entry: Entry, connection: int, session: Session) -> None:
    """Let a connection keep an address alive; if there are too many, it replaces the one that was silent longest."""
    sessions = entry.sessions
    if connection not in sessions and len(sessions) >= SESSIONS_MAX:
        del sessions[min(sessions, key=lambda number: sessions[number].seen_ms)]
    sessions[connection] = session


def replaces_topics(broker: Broker, who: Identity, connection: int, version: DataVersion) -> bool:
    """Return whether the topics of a registration replace the known ones."""
    known = broker.version
    if known is None:
        return True
    if who.broker_id != MASTER_ID:
        return False
    if not broker.is_version_of_master or version.counter > known.counter:
        return True
    # The connection that registered the known version may start to count again. A lower version of another
    # replica lags.
    return connection == broker.version_connection and version != known


def queue_of(broker_name: str, config: TopicConfig) -> QueueData:
    """Return the queues that a registered topic has on a broker name."""
    return QueueData(
        broker_name,
        config.read_queue_nums,
        config.write_queue_nums,
        config.perm,
        config.topic_sys_flag,
    )


def named_groups(text: str) -> frozenset[str]:
    """Return the names in a list that is separated by semicolons."""
    return frozenset(name for name in text.split(";") if name)


def listed_groups(order_conf: str) -> frozenset[str]:
    """Return the broker groups in a queue list such as `group-a:4;group-b:4`."""
    return frozenset(part.partition(":")[0] for part in named_groups(order_conf))


def as_listed(queue: QueueData, listed: Container[str]) -> QueueData:
    """Return the queues of an ordered topic as they are routed: writable if its queue list names their broker group.

    The Go client does not read the list, and hashes keys over the queues with the write bit. A broker that
    accepts no sends refuses them itself; `PERM_PRIORITY` marks that case, so that ``mqadmin updateTopicPerm``
    sees that setting 6 would be a change.
    """
    if queue.broker_name not in listed:
        return replace(queue, perm=queue.perm & ~PERM_WRITE)
    if queue.perm & PERM_WRITE:
        return queue
    return replace(queue, perm=queue.perm | PERM_WRITE | PERM_PRIORITY)


def living_addresses(broker: Broker) -> Mapping[int, str]:
    """Return the addresses that a connection keeps alive, by id."""
    return {number: entry.address for number, entry in sorted(broker.entries.items())}


def filter_servers(broker: Broker) -> dict[str, tuple[str, ...]]:
    """Return the filter servers of each living address that has some."""
    return {
        entry.address: entry.filter_servers
        for entry in broker.entries.values()
        if entry.filter_servers
    }
