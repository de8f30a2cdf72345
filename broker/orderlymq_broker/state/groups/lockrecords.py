"""Records of the raft log about queue locks and the death of their holders, by the rules of ``records.py``."""

from typing import TypeAlias

from msgspec import Struct

from orderlymq_broker.state.integerranges import NO_TOKEN, Lease, Long, Natural, Position


class LockRef(Struct, frozen=True, array_like=True):
    """One lock as the leader saw it; *stamp* is the raft index of its last grant or renewal."""

    topic: str
    queue_id: Natural
    stamp: Position


class LocksRequested(Struct, frozen=True, array_like=True, tag=30):
    """A client asks for queues: free ones are granted, its own are renewed, and others are left alone.

    Attributes:
        address: "host:port" from which the request came.
        lease_ms: how long a grant is valid without renewal.
        orderly: remember that this group takes locks; false for broadcasting members.
    """

    group: str
    client_id: str
    address: str
    lease_ms: Lease
    queues: tuple[tuple[str, Natural], ...]
    orderly: bool = True


class LocksReleased(Struct, frozen=True, array_like=True, tag=31):
    """A client releases queues; None means all that it holds in the group."""

    group: str
    client_id: str
    queues: tuple[tuple[str, Natural], ...] | None


class LocksExpired(Struct, frozen=True, array_like=True, tag=32):
    """Leases expired on the leader's clock; a lock that was renewed since (with another stamp) stays."""

    group: str
    locks: tuple[LockRef, ...]


class ClientDead(Struct, frozen=True, array_like=True, tag=33):
    """A client is proven dead: its locks are freed and its memberships removed, in every group.

    Attributes:
        token: the token of the reporting operator; a token smaller than the greatest seen changes nothing.
        addresses: the addresses of the dead program's connections, if nothing else distinguishes it from another
            program with its client id. A lock that was requested from another address makes the proof void, and so do
            lanes of a member whose heartbeat came from another address.
        most: free at most this many locks, and leave everything else to the next record; 0 for everything.
    """

    client_id: str
    proof: str
    token: Long = NO_TOKEN
    addresses: tuple[str, ...] | None = None
    most: Natural = 0


class LocksGranted(Struct, frozen=True):
    """The queues that the client holds now, with their epochs, in the requested order."""

    group: str
    client_id: str
    lease_ms: int
    granted: tuple[tuple[str, int, int], ...]


class LocksFreed(Struct, frozen=True):
    """The queues that became free, by group."""

    queues: tuple[tuple[str, str, int], ...]
    reason: str


LockRecord: TypeAlias = LocksRequested | LocksReleased | LocksExpired | ClientDead
