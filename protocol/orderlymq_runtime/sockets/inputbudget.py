"""
One memory budget for unfinished input: frames, TLS handshakes and HTTP requests that peers have begun to send.

These draw on it: unfinished frames, TLS handshakes, TLS connections without a request, connections to the HTTP pages, and
the bytes into which a compressed body inflates. A finished request is the business of its handler, which has its own limits.

Strangers are peers that were never served. They share a part of the budget; the rest is reserved for clients, so that no crowd of
strangers takes it. Clients may use what strangers leave, and take it back from them. When a part is full, its oldest holder
is ended, not the newest. A client needs milliseconds for a frame or a handshake, so a peer that holds memory
to keep others out is the oldest. Without the reserve, a served client would compete with everybody who can connect. With
a fixed share for each connection, the sum would grow with their number.

A holder draws when it begins to wait. A frame that arrives whole draws nothing, so the hot path pays nothing.
The replicas' port has limits of its own (``replication/transport`` of the broker), because strangers at the clients' port
must not end a replica's handshake.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final, Protocol

# The strangers' part: 512 handshakes at a time, or 2048 silent TLS connections, or 4 of the largest frames.
STRANGERS_BYTES_MAX: Final = 64 << 20
# For a broker, whose pod has 1 GiB by default: 128 MiB are left for clients, 16 of the largest messages at the same moment.
BROKER_BYTES_MAX: Final = 192 << 20
# For a name server, whose pod has 256 MiB; only registrations are large, and they come one at a time.
NAME_SERVER_BYTES_MAX: Final = 96 << 20


class Holder(Protocol):
    """A user of the budget: a connection, or one that is not established yet."""

    def give_up(self, reason: str) -> None:
        """Close, and free the memory; the budget has already taken it back."""


@dataclass(slots=True)
class _Part:
    """The input of one kind of peer by holder, the oldest first: bytes and their purpose."""

    held: int = 0
    holders: dict[Holder, tuple[int, str]] = field(default_factory=dict)

    def put(self, holder: Holder, size: int, use: str) -> None:
        self.held += size - self.holders.get(holder, (0, ""))[0]
        self.holders[holder] = size, use

    def take(self, holder: Holder) -> None:
        self.held -= self.holders.pop(holder, (0, ""))[0]


class InputBudget:
    """The budget of one process; its invariant is ``held <= bytes_max``.

    Args:
        bytes_max: the limit for all peers.
        strangers_max: the part of it for strangers, less than *bytes_max*.

    Attributes:
        strangers, clients: the memory that each kind of peer holds.
        refusals: how many holders were ended because a part was full, by the purpose of their memory.
    """

    def __init__(
        self, *, bytes_max: int = BROKER_BYTES_MAX, strangers_max: int = STRANGERS_BYTES_MAX
    ) -> None:
        assert 0 < strangers_max < bytes_max, "clients need a reserve"
        self.bytes_max = bytes_max
        self.strangers_max = strangers_max
        self.refusals: Counter[str] = Counter()
        self.strangers = _Part()
        self.clients = _Part()

    def hold(self, holder: Holder, size: int, use: str, *, is_client: bool = False) -> None:
        """Record that *holder* now keeps *size* bytes; if that is too much, the holder or an older one is ended.

        A holder keeps its age until it is released. *use* is a fixed word under which refusals are counted; *is_client*
        means that the peer has been served before.
        """
        part, other = self.strangers, self.clients
        if is_client:
            part, other = other, part
        other.take(holder)
        part.put(holder, size, use)
        while self.strangers.held > self.strangers_max:
            self._end_oldest(self.strangers)
        self.make_room(0)

    def release(self, holder: Holder) -> None:
        """Record that *holder* keeps nothing; harmless if it kept nothing."""
        self.strangers.take(holder)
        self.clients.take(holder)

    def make_room(self, size: int) -> None:
        """Make room for *size* bytes that are used and freed before anything else happens on the loop."""
        while self.strangers.held + self.clients.held + size > self.bytes_max:
            part = self.strangers if self.strangers.holders else self.clients
            if not part.holders:
                return  # another limit bounds what is asked for
            self._end_oldest(part)

    def _end_oldest(self, part: _Part) -> None:
        holder, (size, use) = next(iter(part.holders.items()))
        part.take(holder)
        self.refusals[use] += 1
        share = self.bytes_max if part is self.clients else self.strangers_max
        holder.give_up(
            f"the oldest of the connections that use the {share} bytes for unfinished input: it "
            f"has {size} bytes for {use.replace('_', ' ')}"
        )
