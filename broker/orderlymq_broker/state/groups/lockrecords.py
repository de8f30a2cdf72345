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
    """A client asks for queues: free ones are granted, its own renewed, others left alone.

    Attributes:
        address: "host:port" that the request came from.
        lease_ms: how long a grant is good without renewal.
        orderly: remember that this group takes locks; false for broadcasting members.
    """

    group: str
    client_id: str
    address: str
    lease_ms: Lease
    queues: tuple[tuple[str, Natural], ...]
    orderly: bool = True


class LocksReleased(Struct, frozen=True, array_like=True, tag=31):
    """A client gives queues back; None means all it holds in the group."""

    group: str
    client_id: str
    queues: tuple[tuple[str, Natural], ...] | None


class LocksExpired(Struct, frozen=True, array_like=True, tag=32):
    """Leases ran out on the leader's clock; one renewed since (other stamp) stays."""

    group: str
    locks: tuple[LockRef, ...]


class ClientDead(Struct, frozen=True, array_like=True, tag=33):
    """A client is proven dead: its locks are free and its memberships gone, in every group.

    Attributes:
        token: of the operator that says so; one smaller than the greatest seen changes nothing.
        addresses: where the dead program's connections came from, when nothing else distinguishes it from another
            program with its client id. A lock that was asked for from elsewhere makes the proof void, and so do
            lanes of a member whose heartbeat came from elsewhere.
        most: free no more locks than these, and leave all else to the next record; 0 for everything.
    """

    client_id: str
    proof: str
    token: Long = NO_TOKEN
    addresses: tuple[str, ...] | None = None
    most: Natural = 0


class LocksGranted(Struct, frozen=True):
    """The queues that the client holds now, with their epochs, in the order asked for."""

    group: str
    client_id: str
    lease_ms: int
    granted: tuple[tuple[str, int, int], ...]


class LocksFreed(Struct, frozen=True):
    """The queues that became free, by group."""

    queues: tuple[tuple[str, str, int], ...]
    reason: str


LockRecord: TypeAlias = LocksRequested | LocksReleased | LocksExpired | ClientDead
