"""
Client sessions: the clients, groups and languages behind each connection.

The rules: a pull and an offset commit carry no client id, so a connection is identified by the heartbeats and
lock requests that came over it. A client id may be behind several connections, because old clients use a
second port for part of their requests. All of this is in one leader's memory and ends with the process;
members that survive are in ``state/groups/members.py``.
"""

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field
from typing import Final

import msgspec

from orderlymq_broker.core.effects import Caller, Now
from orderlymq_broker.core.quotas import owner_of
from orderlymq_broker.state.sharedroom import SharedRoom
from orderlymq_protocol.body.clients import ConsumerData

# Producer groups that are remembered per connection in addition to its heartbeats; programs have one or two.
SENT_FOR_MAX: Final = 64
# Client ids behind one connection. A program has one, or one for each cluster if it shares the connection.
CLIENTS_MAX: Final = 64
# The total size of the last heartbeats of all clients behind one connection; programs send some hundred bytes.
SAID_OF_CONNECTION_MAX: Final = 512 << 10
# The total size over all connections of heartbeats larger than SAID_SMALL; in memory they take five times as
# much. All heartbeats together may take twice as much, so that large ones do not keep small ones out.
SAID_MAX: Final = 32 << 20
SAID_SMALL: Final = 4 << 10
# Groups that one connection may consume for before its first heartbeat; programs have one or two.
CONSUMED_MAX: Final = 64


class TooManyClients(Exception):  # noqa: N818 - named for what the sender must know
    """More clients have named themselves over one connection than are allowed."""


class TooMuchSaid(Exception):  # noqa: N818 - named for what the sender must know
    """The heartbeats of one connection, or of all clients, would be too large together."""


@dataclass(slots=True)
class Session:
    """One connection that has named its client.

    Attributes:
        client_ids: the clients that identified themselves here, with the account that each signed with; one
            client, unless a program shares its connection.
        heartbeat: the last heartbeat's bytes; an identical heartbeat is not parsed again.
        heartbeat_client: the client that sent this heartbeat.
        producer_groups: groups that produce over this connection, by client id.
        consumers: the client's consumer groups in its last heartbeat, by client id.
        said: the size of that heartbeat in bytes, by client id.
        pulled: whether pulls come over this connection; the client's other connections are then not used for pulls.
        committed: whether offset commits come over this connection.
        seen_ms: monotonic time of the last request that named a client.
    """

    caller: Caller
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
        """Return whether a client's heartbeat here named this consumer group, whether it is still a member or not."""
        return any(
            consumer.group_name == group
            for consumers in self.consumers.values()
            for consumer in consumers
        )


@dataclass(slots=True)
class Presence:
    """The connection over which this leader last heard of a group member, and when (monotonic ms).

    *by_heartbeat* is False for a member that only asked for locks; old clients do so over a second port.
    *lapsed* means that it has let its last lock expire and has sent no heartbeat since.
    """

    connection: int
    seen_ms: int
    by_heartbeat: bool
    lapsed: bool = False


class Sessions:
    """All known connections, and the connections of the members of groups.

    Attributes:
        said: bytes of the last heartbeats of all clients, by account or address; *said_large* counts only the
            large ones.
    """

    def __init__(self) -> None:
        self.said = SharedRoom(2 * SAID_MAX)
        self.said_large = SharedRoom(SAID_MAX)
        self._connections: dict[int, Session] = {}
        self._clients: dict[str, set[int]] = {}
        self.presence: dict[tuple[str, str], Presence] = {}
        self._by_group: dict[str, set[str]] = {}
        self._groups: dict[str, set[str]] = {}
        # Connections of clients whose heartbeats say that they produce, by producer group.
        self._producers: dict[str, set[int]] = {}
        # The senders of half messages, by producer group and connection, and the groups by connection.
        self._senders: dict[str, dict[int, Caller]] = {}
        self._sent_for: dict[int, set[str]] = {}
        # Connections that consume but have sent no heartbeat yet, by group, and the groups by connection.
        self._unnamed: dict[str, set[int]] = {}
        self._unnamed_groups: dict[int, set[str]] = {}
        # Open connections over which a request came. A request that has waited may be served after its connection
        # is closed.
        self._open: set[int] = set()
        # The client that the fence assumes behind an unnamed connection, by connection and group.
        self._recognized: dict[int, dict[str, str]] = {}

    def get(self, connection: int) -> Session | None:
        """Return the session of a connection, None if it has named no client yet."""
        return self._connections.get(connection)

    def opened(self, connection: int) -> None:
        """Note that a request has come over a connection."""
        self._open.add(connection)

    def identify(self, caller: Caller, client_id: str) -> Session:
        """Note that *client_id* is behind the connection of *caller*; ``processors/groups/clientids.py`` has checked that.

        Raises:
            TooManyClients: the connection has named many other clients already.
        """
        session = self._connections.get(caller.connection)
        if session is None:
            session = self._connections[caller.connection] = Session(caller)
        if client_id not in session.client_ids:
            if len(session.client_ids) >= CLIENTS_MAX:
                raise TooManyClients(
                    f"{CLIENTS_MAX} clients use this connection already; open another one"
                )
            self._clients.setdefault(client_id, set()).add(caller.connection)
        session.client_ids[client_id] = caller.account

        return session

    def close(self, connection: int) -> Session | None:
        """Drop a connection and return its session."""
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

    def check_said(self, caller: Caller, client_id: str, size: int) -> None:
        """Check that a client's heartbeat may have *size* bytes; a heartbeat not larger than the last one always may.

        Raises:
            TooMuchSaid: the heartbeats of its connection would be too large together, or those of its account
                or address would be, given those of all others.
        """
        session = self._connections.get(caller.connection)
        said = {} if session is None else session.said
        before = said.get(client_id, 0)
        grows, grows_large = size - before, _large_part(size) - _large_part(before)
        if grows <= 0:
            return
        if sum(said.values()) + grows > SAID_OF_CONNECTION_MAX:
            raise TooMuchSaid(
                f"the heartbeats of one connection may have {SAID_OF_CONNECTION_MAX} bytes in "
                "total: divide the clients over several connections"
            )
        owner = owner_of(caller if session is None else session.caller)
        if not self.said.has_room(owner, grows) or (
            grows_large > 0 and not self.said_large.has_room(owner, grows_large)
        ):
            raise TooMuchSaid(
                f"the heartbeats of all clients have {self.said.used} bytes in total already, "
                f"{self.said.part(owner)} of them from your account or address: subscribe to "
                "fewer topics and tags, or use another broker group"
            )

    def take_said(
        self, session: Session, client_id: str, size: int, consumers: tuple[ConsumerData, ...]
    ) -> None:
        """Store the content of a client's heartbeat of *size* bytes."""
        self._note_said(session, client_id, size)
        session.consumers[client_id] = consumers

    def _note_said(self, session: Session, client_id: str, size: int) -> None:
        # All heartbeats of one connection count for the account of its first request.
        before, owner = session.said.pop(client_id, 0), owner_of(session.caller)
        self.said.take(owner, size - before)
        self.said_large.take(owner, _large_part(size) - _large_part(before))
        if size:
            session.said[client_id] = size

    def disown(self, client_id: str, connection: int) -> None:
        """Drop a client from a connection, because its id now belongs to another client."""
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
        """Store the groups for which a client produces over a connection."""
        connection, said = session.caller.connection, session.producer_groups
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

    def produced(self, group: str, caller: Caller) -> None:
        """Note that a connection belongs to a producer of *group*, unless it is closed."""
        if caller.connection not in self._open:
            return
        groups = self._sent_for.setdefault(caller.connection, set())
        if len(groups) < SENT_FOR_MAX:
            groups.add(group)
            self._senders.setdefault(group, {})[caller.connection] = caller

    def retire(self, group: str, connection: int) -> None:
        """Note that a connection no longer belongs to a producer of *group*."""
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
        """Note which client of a consumer group an unnamed connection must belong to, unless the connection is closed."""
        if connection not in self._open:
            return
        groups = self._recognized.setdefault(connection, {})
        if len(groups) < CONSUMED_MAX or group in groups:
            groups[group] = client_id

    def recognized(self, group: str, connection: int) -> str:
        """Return the client that this connection must belong to; empty if unknown."""
        return self._recognized.get(connection, {}).get(group, "")

    def identified(self, connection: int) -> None:
        """Drop the assumptions about a connection, because it has named its client or is closed."""
        self._recognized.pop(connection, None)
        for group in self._unnamed_groups.pop(connection, ()):
            connections = self._unnamed[group]
            connections.discard(connection)
            if not connections:
                del self._unnamed[group]

    def producer_connection(self, client_id: str) -> int | None:
        """Return the newest connection over which a client produces, None if there is none."""
        sessions = self.of_client(client_id)
        found = (s.caller.connection for s in sessions if s.producer_groups.get(client_id))

        return max(found, default=None)

    def claimed_producers(self, groups: Set[str]) -> dict[str, list[Caller]]:
        """Return the clients whose heartbeats name these producer groups, once for each account that they signed with."""
        found: dict[str, list[Caller]] = {}
        for group in groups & self._producers.keys():
            sessions = [self._connections[number] for number in sorted(self._producers[group])]
            found[group] = [
                msgspec.structs.replace(session.caller, account=account)
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

    def senders(self, group: str) -> list[Caller]:
        """Return the senders of half messages of a group, ordered by connection."""
        senders = self._senders.get(group, {})

        return [senders[connection] for connection in sorted(senders)]

    def heartbeat(self, group: str, client_id: str, connection: int, now: Now) -> Presence | None:
        """Note a heartbeat of a member; return its former presence if that was on another connection."""
        before = self.presence.get((group, client_id))
        self.presence[group, client_id] = Presence(connection, now.monotonic_ms, by_heartbeat=True)
        self._by_group.setdefault(group, set()).add(client_id)
        self._groups.setdefault(client_id, set()).add(group)

        return before if before is not None and before.connection != connection else None

    def last_seen(self, group: str, client_id: str, connection: int, now: Now) -> None:
        """Note that a client asked for locks over this connection, which can reach it until it sends heartbeats."""
        present = self.presence.get((group, client_id))
        if present is None or present.connection not in self._connections:
            self.heartbeat(group, client_id, connection, now)
            self.presence[group, client_id].by_heartbeat = False

    def groups_of(self, client_id: str) -> list[str]:
        """Return the groups in which a client was seen."""
        return sorted(self._groups.get(client_id, ()))

    def leave(self, group: str, client_id: str) -> None:
        """Drop the presence of a member."""
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
        """Drop a client from these groups if it was last seen over this connection."""
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
        """Return the connections of a group's members and of unnamed clients that consume for it."""
        return sorted({*self.members_at(group), *self._unnamed.get(group, ())})

    def __len__(self) -> int:
        return len(self._connections)


def _large_part(size: int) -> int:
    return size if size > SAID_SMALL else 0
