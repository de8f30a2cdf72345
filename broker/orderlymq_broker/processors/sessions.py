"""
Who is behind a connection.

The rules: a pull and an offset commit carry no client id, so a connection is known by the heartbeats
and lock requests that came over it; a client id may be behind several connections (old clients use
a second port for part of their requests). All of it is one leader's memory and dies with the
process; members that survive are in ``state/members.py``.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from orderlymq_broker.processors.effects import Peer


@dataclass(slots=True)
class Session:
    """One connection that has said who it is.

    Attributes:
        client_ids: who has identified itself here; one, unless a program shares its connection.
        heartbeat: the last heartbeat's bytes: a repeat of them changes nothing.
        producer_groups: groups that produce over this connection.
        consumer_groups: groups that this connection's heartbeats named, by client id.
        pulled: pulls come over this connection (its client's others are then no puller).
        committed: offset commits come over this connection.
        seen_ms: monotonic time of the last heartbeat.
    """

    peer: Peer
    client_ids: set[str] = field(default_factory=set)
    heartbeat: bytes = b""
    language: int = 0
    version: int = 0
    producer_groups: set[str] = field(default_factory=set)
    consumer_groups: dict[str, set[str]] = field(default_factory=dict)
    pulled: bool = False
    committed: bool = False
    seen_ms: int = 0


@dataclass(slots=True)
class Presence:
    """A member of a group that this leader has heard of: where, and when last (monotonic ms)."""

    connection: int
    seen_ms: int


class Sessions:
    """All connections that are known, and where the members of the groups are."""

    def __init__(self) -> None:
        self._connections: dict[int, Session] = {}
        self._clients: dict[str, set[int]] = {}
        self.presence: dict[tuple[str, str], Presence] = {}

    def get(self, connection: int) -> Session | None:
        """Return the session of a connection, None while it has not said who it is."""
        return self._connections.get(connection)

    def identify(self, peer: Peer, client_id: str) -> Session:
        """Note that *client_id* is behind the connection of *peer*."""
        session = self._connections.get(peer.connection)
        if session is None:
            session = self._connections[peer.connection] = Session(peer)
        if client_id not in session.client_ids:
            session.client_ids.add(client_id)
            self._clients.setdefault(client_id, set()).add(peer.connection)

        return session

    def close(self, connection: int) -> Session | None:
        """Forget a connection and return what was known of it."""
        session = self._connections.pop(connection, None)
        if session is None:
            return None
        for client_id in session.client_ids:
            connections = self._clients[client_id]
            connections.discard(connection)
            if not connections:
                del self._clients[client_id]

        return session

    def of_client(self, client_id: str) -> list[Session]:
        """Return the sessions of a client."""
        return [self._connections[number] for number in sorted(self._clients.get(client_id, ()))]

    def all(self) -> Iterator[Session]:
        """Yield every session, oldest connection first."""
        yield from self._connections.values()

    def producers(self, group: str | None = None) -> Iterator[tuple[str, str, Session]]:
        """Yield (group, client id, session) of the producers, of one group or of all."""
        for session in self._connections.values():
            for name in sorted(session.producer_groups):
                if group is None or name == group:
                    yield from ((name, client, session) for client in sorted(session.client_ids))

    def members_at(self, group: str) -> list[int]:
        """Return the connections over which members of a group can be told something."""
        return sorted(
            {
                presence.connection
                for (name, _), presence in self.presence.items()
                if name == group and presence.connection in self._connections
            }
        )

    def __len__(self) -> int:
        return len(self._connections)
