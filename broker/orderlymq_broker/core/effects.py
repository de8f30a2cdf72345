"""
The effects that a processor may ask for: one closed union.

Processors never touch a socket or the log. They return effects; the shell sends, proposes
and closes. A reply that depends on a record leaves only when the record is committed and
applied, because it stands in ``Propose.applied``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec

from orderlymq_broker.core.messagedraft import Draft
from orderlymq_broker.state.records import Outcome, Record
from orderlymq_broker.state.topics.queues import Queue
from orderlymq_protocol.frame.command import RemotingCommand

# A clock that differs by so much was set, it has not drifted.
CLOCK_STEP_MS: Final = 60_000


# Structs, because each is built for every request: a frozen dataclass takes five times as long.
class Now(msgspec.Struct, frozen=True, gc=False):
    """The two clocks of a leader: wall time for records, monotonic time for deadlines.

    Attributes:
        is_confirmed: whether a majority of the group shows this wall time, within `CLOCK_STEP_MS`.
    """

    wall_ms: int
    monotonic_ms: int
    is_confirmed: bool = True

    def was_ahead(self, wall_ms: int) -> bool:
        """Return whether a past time was given by a clock that was ahead; clocks of leaders differ by less."""
        return wall_ms > self.wall_ms + CLOCK_STEP_MS


class Peer(msgspec.Struct, frozen=True, gc=False):
    """Where a request came from, and whose it is.

    Attributes:
        connection: unique for the life of the process.
        account: the access key that it was admitted with; empty without access control and for
            addresses that need no account.
        listener: the further listener that it came in by; empty for the group's own address.
    """

    connection: int
    host: str
    port: int
    account: str = ""
    listener: str = ""


# Not frozen, like Propose: each is built for every message, and freezing triples the cost.
@dataclass(slots=True)
class Send:
    """Write *command* to a connection; nothing happens when it is gone."""

    connection: int
    command: RemotingCommand


@dataclass(frozen=True, slots=True)
class Close:
    """Close a connection, for requests that may not be answered with an error code."""

    connection: int
    reason: str


class Refusal(msgspec.Struct, frozen=True):
    """Why a proposal cannot be stored, as the answer to its sender says; nothing was stored and nothing will be."""

    code: int
    remark: str


# The kind, topic, group or account, and the name of what a record changes.
Changed: TypeAlias = tuple[str, str]
Lost: TypeAlias = Callable[[Refusal | None], "list[Effect]"]


@dataclass(slots=True)
class Propose:
    """Replicate *records*; exactly one of *applied* and *lost* is called, once.

    Attributes:
        records: what the state machine will apply, all or nothing, in this order; a draft becomes the record
            of its message, and a ``HalfOpened`` names the place of the draft before it.
        applied: called with one outcome per record, after commit and apply on this leader.
        lost: called when it is certain that the records were not and will not be applied: with a refusal when
            they cannot be stored at all, with None when another leader has taken over.
        size: bytes in the log, about; the entry builder counts them, and
        changes_count: how many changes they make, as far as each takes time to apply.
        first_at: the queue and the offset of their first message, for copies of another cluster: where another offset is
            next, they are refused when their entry is built.
        begins: whether a queue that never had a message begins at that offset.
        creations: topics and groups that they make.
        changes: topics, consumer groups and accounts that they make, change, delete or expand.
        deletes: topics and groups that they delete, and who leaves by them, as ``EntryBuilder.pending_removals`` names them.
        rows: rows that they may add to tables with a limit, as ``EntryBuilder.pending_rows`` names them.
        rows_size: bytes that these topics take in a registration.
        view: number of the leadership under which they were counted.
    """

    records: Sequence[Record | Draft]
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
class Later:
    """Go on with work that would take long in one go: timers, peers and other clients come first.

    Attributes:
        step: called once, in the next iteration of the event loop, whatever role the replica has then.
    """

    step: "Callable[[Now], list[Effect]]"


Effect: TypeAlias = Send | Close | Propose | Later
