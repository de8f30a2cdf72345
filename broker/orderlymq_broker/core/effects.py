"""
The effects that a processor may return: one closed union.

Processors never touch a socket or the log. They return effects; the shell sends, proposes and closes. A reply
that depends on a record is in ``Propose.applied``, so it leaves only when the record is committed and
applied.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec

from orderlymq_broker.core.messagedraft import MessageDraft
from orderlymq_broker.state.records import Outcome, Record
from orderlymq_broker.state.topics.queues import Queue
from orderlymq_protocol.frame.command import RemotingCommand

# A clock that differs by this much was set; it has not drifted.
CLOCK_STEP_MS: Final = 60_000


# Structs, because each is built for every request: a frozen dataclass takes five times as long.
class Now(msgspec.Struct, frozen=True, gc=False):
    """The two clocks of a leader: wall time for records, monotonic time for deadlines.

    Attributes:
        is_confirmed: whether the clocks of a majority of the raft group agree with this wall time within
            `CLOCK_STEP_MS`.
    """

    wall_ms: int
    monotonic_ms: int
    is_confirmed: bool = True

    def was_ahead(self, wall_ms: int) -> bool:
        """Return whether a past time came from a clock that was ahead: leaders' clocks differ by less than `CLOCK_STEP_MS`."""
        return wall_ms > self.wall_ms + CLOCK_STEP_MS


class Caller(msgspec.Struct, frozen=True, gc=False):
    """The source of a request: its connection and account.

    Attributes:
        connection: unique for the life of the process.
        account: the access key that the request was admitted with; empty without access control and for
            addresses that need no account.
        listener: the additional listener that the connection came in by; empty for the broker group's own address.
    """

    connection: int
    host: str
    port: int
    account: str = ""
    listener: str = ""


# Not frozen, like Propose: each is built for every message, and freezing triples the cost.
@dataclass(slots=True)
class Send:
    """Write *command* to a connection; does nothing if the connection is closed."""

    connection: int
    command: RemotingCommand


@dataclass(frozen=True, slots=True)
class Close:
    """Close a connection, for requests that must not be answered with an error code."""

    connection: int
    reason: str


class Refusal(msgspec.Struct, frozen=True):
    """The reason why a proposal cannot be stored, for the answer to its sender; nothing was or will be stored."""

    code: int
    remark: str


# The kind ("topic", "group" or "account") and the name of what a record changes.
Changed: TypeAlias = tuple[str, str]
Lost: TypeAlias = Callable[[Refusal | None], "list[Effect]"]


@dataclass(slots=True)
class Propose:
    """Replicate *records*; exactly one of *applied* and *lost* is called, once.

    Attributes:
        records: what the state machine will apply, all or nothing, in this order; a draft becomes the record
            of its message, and a ``HalfOpened`` gets the place of the draft before it.
        applied: called with one outcome per record, after commit and apply on this leader.
        lost: called when it is certain that the records were not and will not be applied: with a refusal if
            they cannot be stored at all, with None if another leader took over.
        size: approximate bytes in the log; the entry builder counts them.
        changes_count: how many of their changes take time to apply; the entry builder counts them.
        first_at: for copies from another cluster, the queue and offset of their first message; if the queue
            continues at another offset when their entry is built, they are refused.
        begins: whether a queue that never had a message begins at that offset.
        creations: how many topics and groups they create.
        changes: topics, consumer groups and accounts that they create, change, delete or expand.
        deletes: topics and groups that they delete, and members that leave by them, as keys of
            ``EntryBuilder.pending_removals``.
        rows: rows that they may add to tables with a limit, as keys of ``EntryBuilder.pending_rows``.
        rows_size: bytes that the created topics take in a registration.
        view: number of the leadership under which they were counted.
    """

    records: Sequence[Record | MessageDraft]
    applied: "Callable[[Sequence[Outcome], Now], list[Effect]] | None" = None
    lost: Lost | None = None
    first_at: tuple[Queue, int] | None = None
    begins: bool = False
    size: int = 0
    changes_count: int = 0
    creations: int = 0
    changes: Sequence[Changed] = ()
    deletes: Sequence[tuple[str, ...]] = ()
    rows: Sequence[tuple[tuple[str, ...], int]] = ()
    rows_size: int = 0
    view: int = 0


@dataclass(frozen=True, slots=True)
class CallSoon:
    """Continue work in the next iteration of the event loop, so that timers, peers and other clients come first.

    Attributes:
        step: called once in that iteration, in any role of the replica.
    """

    step: "Callable[[Now], list[Effect]]"


Effect: TypeAlias = Send | Close | Propose | CallSoon
