"""
One budget of memory for unfinished input: frames, TLS handshakes and HTTP requests that peers have begun to send.

Drawn on it: unfinished frames, TLS handshakes and TLS connections without a request, connections to the HTTP pages, and
what a compressed body inflates to. A finished request is its handler's business, with limits there.

Strangers are peers that were never served. They share a part of the budget, and clients have the rest for themselves, so that no crowd of strangers
takes it. Clients may use what strangers leave, and take it back from them. When a part is full, its oldest holder
ends, not the newest. A client needs milliseconds for a frame or a handshake; somebody who holds memory
to keep others out is the oldest. Without the reserve a served client would compete with everybody who can connect; with
a fixed share for each connection the sum would grow with their number.

A holder draws when it begins to wait. A frame that comes whole draws nothing, so the hot path pays nothing.
The port of the replicas has bounds of its own (``replication/transport`` of the broker): strangers at the port of the clients
must not end a replica's handshake.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final, Protocol

# Strangers' part. 512 handshakes at a time, or 2048 TLS connections that say nothing, or 4 of the largest frames.
STRANGERS_BYTES_MAX: Final = 64 << 20
# Of a broker, whose pod has 1 GiB by default: 128 MiB for clients, 16 of the largest messages under way at the same moment.
BROKER_BYTES_MAX: Final = 192 << 20
# Of a name server, whose pod has 256 MiB; only registrations are large, one at a time.
NAME_SERVER_BYTES_MAX: Final = 96 << 20


class Holder(Protocol):
    """Who draws on the budget: a connection, or what is not one yet."""

    def give_up(self, reason: str) -> None:
        """Close, and free what is held; the budget has already taken it back."""


@dataclass(slots=True)
class _Part:
    """Input of one kind of peer, the oldest first: bytes and their purpose."""

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
        bytes_max: for everybody.
        strangers_max: of that for strangers, less than *bytes_max*.

    Attributes:
        strangers, clients: what each kind of peer holds.
        refusals: how many holders were ended because a part was full, by what they held memory for.
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
        """Note that *holder* keeps *size* bytes now; it, or an older one, ends when that is too much.

        A holder keeps its age until it is released. *use* is a fixed word, by which refusals are counted; *is_client*
        says that it has been served before.
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
        """Note that *holder* keeps nothing; harmless when it kept nothing."""
        self.strangers.take(holder)
        self.clients.take(holder)

    def make_room(self, size: int) -> None:
        """Let *size* bytes be used and freed before anything else happens on the loop."""
        while self.strangers.held + self.clients.held + size > self.bytes_max:
            part = self.strangers if self.strangers.holders else self.clients
            if not part.holders:
                return  # a limit of its own bounds what is asked for
            self._end_oldest(part)

    def _end_oldest(self, part: _Part) -> None:
        holder, (size, use) = next(iter(part.holders.items()))
        part.take(holder)
        self.refusals[use] += 1
        share = self.bytes_max if part is self.clients else self.strangers_max
        holder.give_up(
            f"the oldest of those that use the {share} bytes for unfinished input: {size} bytes for {use.replace('_', ' ')}"
        )
