"""
Client sessions: which clients, groups and languages are behind a connection.

The rules: a pull and an offset commit carry no client id, so a connection is known by the heartbeats
and lock requests that came over it; a client id may be behind several connections (old clients use
a second port for part of their requests). All of it is one leader's memory and dies with the
process; members that survive are in ``state/groups/members.py``.
"""

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field
from typing import Final

import msgspec

from orderlymq_broker.core.effects import Now, Peer
from orderlymq_broker.core.quotas import owner_of
from orderlymq_broker.state.sharedroom import SharedRoom
from orderlymq_protocol.body.clients import ConsumerData

# Producer groups that are remembered per connection beside its heartbeats; programs have one or two.
SENT_FOR_MAX: Final = 64
# Client ids behind one connection: a program has one, or one for each cluster that it shares it for.
CLIENTS_MAX: Final = 64
# What the last heartbeats of all clients behind one connection may have together: programs send some hundred bytes.
SAID_OF_CONNECTION_MAX: Final = 512 << 10
# And of all connections, for large ones: in memory they take five times as much. Small ones may have twice as much with these, so that
# large ones keep nobody out.
SAID_MAX: Final = 32 << 20
SAID_SMALL: Final = 4 << 10
# Groups that one connection may consume for before its first heartbeat; programs have one or two.
CONSUMED_MAX: Final = 64


class TooManyClients(Exception):  # noqa: N818 - named for what the sender must know
    """More clients than one connection may have."""


class TooMuchSaid(Exception):  # noqa: N818 - named for what the sender must know
    """Heartbeats that are too large together."""


@dataclass(slots=True)
class Session:
    """One connection that has named its client.

    Attributes:
        client_ids: who has identified itself here, and the account that it signed with; one client,
            unless a program shares its connection.
        heartbeat: the last heartbeat's bytes, which are not read again when they are repeated.
        heartbeat_client: whose heartbeat that was.
        producer_groups: groups that produce over this connection, by client id.
        consumers: the client's consumer groups in its last heartbeat, by client id.
        said: how many bytes that heartbeat had, by client id.
        pulled: pulls come over this connection (its client's others are then no puller).
        committed: offset commits come over this connection.
        seen_ms: monotonic time of the last request that named a client.
    """

    peer: Peer
    client_ids: dict[str, str] = field(default_factory=dict)
    heartbeat: bytes = b""
    heartbeat_client: str = ""
    language: int = 0
    version: int = 0
    producer_groups: dict[str, set[str]] = field(default_factory=dict)
    consumers: dict[str, tuple[ConsumerData, ...]] = field(default_factory=dict)
    said: dict[str, int] = field(default_factory=dict)
    pulled: bool = False
    committed: bool = False
    seen_ms: int = 0

    def consumes(self, group: str) -> bool:
        """Return whether a client here has said that it consumes for *group*, member or no more."""
        return any(
            consumer.group_name == group
            for consumers in self.consumers.values()
            for consumer in consumers
        )


@dataclass(slots=True)
class Presence:
    """A member of a group that this leader has heard of: where, and when last (monotonic ms).

    *by_heartbeat* is false for one that only asked for locks: old clients do so over a second port.
    *lapsed* says that it has let its last lock expire and has sent no heartbeat since.
    """

    connection: int
    seen_ms: int
    by_heartbeat: bool
    lapsed: bool = False


class Sessions:
    """All connections that are known, and where the members of the groups are.

    Attributes:
        said: bytes of the last heartbeats of all clients, by account or address; *said_large* has those of large ones.
    """

    def __init__(self) -> None:
        self.said = SharedRoom(2 * SAID_MAX)
        self.said_large = SharedRoom(SAID_MAX)
        self._connections: dict[int, Session] = {}
        self._clients: dict[str, set[int]] = {}
        self.presence: dict[tuple[str, str], Presence] = {}
        self._by_group: dict[str, set[str]] = {}
        self._groups: dict[str, set[str]] = {}
        # Connections of those who say in heartbeats that they produce, by producer group.
        self._producers: dict[str, set[int]] = {}
        # Who sent half messages, by producer group and connection, and the groups by connection.
        self._senders: dict[str, dict[int, Peer]] = {}
        self._sent_for: dict[int, set[str]] = {}
        # Connections that consume and have sent no heartbeat yet, by group, and the groups by connection.
        self._unnamed: dict[str, set[int]] = {}
        self._unnamed_groups: dict[int, set[str]] = {}
        # Connections over which a request came and that are open: one that has waited may be served when its own is gone.
        self._open: set[int] = set()
        # Whom the fence takes such a connection for, by connection and group.
        self._recognized: dict[int, dict[str, str]] = {}

    def get(self, connection: int) -> Session | None:
        """Return the session of a connection, None while it has named no client."""
        return self._connections.get(connection)

    def opened(self, connection: int) -> None:
        """Note that a request has come over a connection."""
        self._open.add(connection)

    def identify(self, peer: Peer, client_id: str) -> Session:
        """Note that *client_id* is behind the connection of *peer*; ``processors/groups/clientids.py`` judges that before.

        Raises:
            TooManyClients: there are many others already.
        """
        session = self._connections.get(peer.connection)
        if session is None:
            session = self._connections[peer.connection] = Session(peer)
        if client_id not in session.client_ids:
            if len(session.client_ids) >= CLIENTS_MAX:
                raise TooManyClients(
                    f"{CLIENTS_MAX} clients have named themselves over this connection; open another one"
                )
            self._clients.setdefault(client_id, set()).add(peer.connection)
        session.client_ids[client_id] = peer.account

        return session

    def close(self, connection: int) -> Session | None:
        """Forget a connection and return its session."""
        self._open.discard(connection)
        for group in self._sent_for.get(connection, set()).copy():
            self.retire(group, connection)
        self.identified(connection)
        session = self._connections.pop(connection, None)
        if session is None:
            return None
        for client_id in session.client_ids:
            self._disconnect(client_id, connection)
            self.take_producers(session, client_id, set())
        for client_id in list(session.said):
            self._note_said(session, client_id, 0)

        return session

    def check_said(self, peer: Peer, client_id: str, size: int) -> None:
        """Check that a client's heartbeat may have *size* bytes; one that is no larger than the last may.

        Raises:
            TooMuchSaid: those of its connection, or of its account or address beside all others, would be too large.
        """
        session = self._connections.get(peer.connection)
        said = {} if session is None else session.said
        before = said.get(client_id, 0)
        grows, grows_large = size - before, _large_part(size) - _large_part(before)
        if grows <= 0:
            return
        if sum(said.values()) + grows > SAID_OF_CONNECTION_MAX:
            raise TooMuchSaid(
                f"the heartbeats of one connection have {SAID_OF_CONNECTION_MAX} bytes at most: "
                f"divide the clients over several connections"
            )
        owner = owner_of(peer if session is None else session.peer)
        if not self.said.has_room(owner, grows) or (
            grows_large > 0 and not self.said_large.has_room(owner, grows_large)
        ):
            raise TooMuchSaid(
                f"the heartbeats of all clients have {self.said.used} bytes already, {self.said.part(owner)} of them from your account "
                f"or address: subscribe to fewer topics and tags, or use another group of brokers"
            )

    def take_said(
        self, session: Session, client_id: str, size: int, consumers: tuple[ConsumerData, ...]
    ) -> None:
        """Keep the content of a client's heartbeat of *size* bytes."""
        self._note_said(session, client_id, size)
        session.consumers[client_id] = consumers

    def _note_said(self, session: Session, client_id: str, size: int) -> None:
        # What comes over one connection counts for the account of its first request.
        before, owner = session.said.pop(client_id, 0), owner_of(session.peer)
        self.said.take(owner, size - before)
        self.said_large.take(owner, _large_part(size) - _large_part(before))
        if size:
            session.said[client_id] = size

    def disown(self, client_id: str, connection: int) -> None:
        """Forget that a client is behind a connection: its id belongs to somebody else now."""
        session = self._connections[connection]
        del session.client_ids[client_id]
        session.consumers.pop(client_id, None)
        self.take_producers(session, client_id, set())
        self._note_said(session, client_id, 0)
        session.heartbeat = b""
        self._disconnect(client_id, connection)
        self.leave_at(connection, client_id, self.groups_of(client_id))

    def _disconnect(self, client_id: str, connection: int) -> None:
        connections = self._clients[client_id]
        connections.discard(connection)
        if not connections:
            del self._clients[client_id]

    def of_client(self, client_id: str) -> list[Session]:
        """Return the sessions of a client."""
        return [self._connections[number] for number in sorted(self._clients.get(client_id, ()))]

    def all(self) -> Iterator[Session]:
        """Yield every session, oldest connection first."""
        yield from self._connections.values()

    def take_producers(self, session: Session, client_id: str, groups: set[str]) -> None:
        """Keep for which groups a client produces over a connection."""
        connection, said = session.peer.connection, session.producer_groups
        former = said.pop(client_id, set())
        if groups:
            said[client_id] = groups
        for group in groups:
            self._producers.setdefault(group, set()).add(connection)
        for group in former.difference(*said.values()):
            self._producers[group].discard(connection)
            if not self._producers[group]:
                del self._producers[group]

    def producers(self, group: str) -> Iterator[tuple[str, Session]]:
        """Yield client id and session of each producer of a group."""
        for connection in sorted(self._producers.get(group, ())):
            session = self._connections[connection]
            said = session.producer_groups
            for client_id in sorted(each for each, groups in said.items() if group in groups):
                yield client_id, session

    def produced(self, group: str, peer: Peer) -> None:
        """Note that a producer of *group* is at the other end of a connection, unless it is gone."""
        if peer.connection not in self._open:
            return
        groups = self._sent_for.setdefault(peer.connection, set())
        if len(groups) < SENT_FOR_MAX:
            groups.add(group)
            self._senders.setdefault(group, {})[peer.connection] = peer

    def retire(self, group: str, connection: int) -> None:
        """Forget that a connection belongs to a producer of *group*."""
        senders = self._senders.get(group, {})
        senders.pop(connection, None)
        if not senders:
            self._senders.pop(group, None)
        groups = self._sent_for.get(connection, set())
        groups.discard(group)
        if not groups:
            self._sent_for.pop(connection, None)

    def consumed(self, group: str, connection: int) -> None:
        """Note that a client consumes for *group* over an open connection that has named no client."""
        if connection not in self._open:
            return
        groups = self._unnamed_groups.setdefault(connection, set())
        if len(groups) < CONSUMED_MAX:
            groups.add(group)
            self._unnamed.setdefault(group, set()).add(connection)

    def recognize(self, group: str, connection: int, client_id: str) -> None:
        """Note whose connection of a group's consumer this must be, though it has not said so, unless it is gone."""
        if connection not in self._open:
            return
        groups = self._recognized.setdefault(connection, {})
        if len(groups) < CONSUMED_MAX or group in groups:
            groups[group] = client_id

    def recognized(self, group: str, connection: int) -> str:
        """Return whose connection this must be; empty when nobody knows."""
        return self._recognized.get(connection, {}).get(group, "")

    def identified(self, connection: int) -> None:
        """Forget the guesses about a connection: it has named its client, or it is gone."""
        self._recognized.pop(connection, None)
        for group in self._unnamed_groups.pop(connection, ()):
            connections = self._unnamed[group]
            connections.discard(connection)
            if not connections:
                del self._unnamed[group]

    def producer_connection(self, client_id: str) -> int | None:
        """Return the newest connection over which a client produces, None when it has none."""
        sessions = self.of_client(client_id)
        found = (s.peer.connection for s in sessions if s.producer_groups.get(client_id))

        return max(found, default=None)

    def claimed_producers(self, groups: Set[str]) -> dict[str, list[Peer]]:
        """Return the clients whose heartbeats name these producer groups, once with each account that they signed with."""
        found: dict[str, list[Peer]] = {}
        for group in groups & self._producers.keys():
            sessions = [self._connections[number] for number in sorted(self._producers[group])]
            found[group] = [
                msgspec.structs.replace(session.peer, account=account)
                for session in sessions
                for account in sorted(
                    {
                        session.client_ids[client_id]
                        for client_id, said in session.producer_groups.items()
                        if group in said
                    }
                )
            ]

        return found

    def senders(self, group: str) -> list[Peer]:
        """Return who sent half messages of a group, by connection."""
        senders = self._senders.get(group, {})

        return [senders[connection] for connection in sorted(senders)]

    def heartbeat(self, group: str, client_id: str, connection: int, now: Now) -> Presence | None:
        """Note a heartbeat of a member; return where it was before, if that was elsewhere."""
        before = self.presence.get((group, client_id))
        self.presence[group, client_id] = Presence(connection, now.monotonic_ms, by_heartbeat=True)
        self._by_group.setdefault(group, set()).add(client_id)
        self._groups.setdefault(client_id, set()).add(group)

        return before if before is not None and before.connection != connection else None

    def last_seen(self, group: str, client_id: str, connection: int, now: Now) -> None:
        """Note that a client asked for locks: good enough to reach it, until it sends heartbeats."""
        present = self.presence.get((group, client_id))
        if present is None or present.connection not in self._connections:
            self.heartbeat(group, client_id, connection, now)
            self.presence[group, client_id].by_heartbeat = False

    def groups_of(self, client_id: str) -> list[str]:
        """Return the groups in which a client was heard of."""
        return sorted(self._groups.get(client_id, ()))

    def leave(self, group: str, client_id: str) -> None:
        """Forget where a member was."""
        if self.presence.pop((group, client_id), None) is None:
            return
        for table, key, item in (
            (self._by_group, group, client_id),
            (self._groups, client_id, group),
        ):
            table[key].discard(item)
            if not table[key]:
                del table[key]

    def leave_at(self, connection: int, client_id: str, groups: Iterable[str]) -> None:
        """Forget that a client is in these groups where it was last heard of over this connection."""
        for group in groups:
            present = self.presence.get((group, client_id))
            if present is not None and present.connection == connection:
                self.leave(group, client_id)

    def members_at(self, group: str) -> list[int]:
        """Return the connections over which members of a group can be notified."""
        return sorted(
            {
                connection
                for client_id in self._by_group.get(group, ())
                if (connection := self.presence[group, client_id].connection) in self._connections
            }
        )

    def consumers_at(self, group: str) -> list[int]:
        """Return the connections of a group's members and of those who consume for it unnamed."""
        return sorted({*self.members_at(group), *self._unnamed.get(group, ())})

    def __len__(self) -> int:
        return len(self._connections)


def _large_part(size: int) -> int:
    return size if size > SAID_SMALL else 0
