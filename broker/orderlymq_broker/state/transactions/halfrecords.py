"""Records of the raft log about half messages, by the rules of ``records.py``."""

from typing import TypeAlias

from msgspec import Struct

from orderlymq_broker.state.integerranges import Long, Position


class HalfOpened(Struct, frozen=True, array_like=True, tag=50):
    """The half message whose append stands before it waits for its producer's decision; refused as that is.

    Attributes:
        offset: its queue offset in the topic of halves.
        physical: physical offset of its stored record.
        group: producer group that may end it and is asked about it.
        topic: where it goes when it is committed.
        unique_key: the beginning of the producer's own id of the message, which has all of it.
        opened_ms: store time of the half, wall ms.
        immunity_ms: do not ask before that long after opening; negative for the setting.
    """

    offset: Position
    physical: Position
    group: str
    topic: str
    unique_key: str
    opened_ms: Position
    immunity_ms: Long = -1


class HalfEnded(Struct, frozen=True, array_like=True, tag=51):
    """A transaction is over; the append of a committed one's copy stands before it, and if that is refused, so is this."""

    offset: Position
    committed: bool


class HalvesChecked(Struct, frozen=True, array_like=True, tag=52):
    """Producers are asked about these halves as soon as this is applied."""

    offsets: tuple[Position, ...]


class HalfGivenUp(Struct, frozen=True, array_like=True, tag=53):
    """Nobody answered; a copy for people is an append of the same entry."""

    offset: Position


class HalfResumed(Struct, frozen=True, array_like=True, tag=54):
    """An administrator wants a half to be asked about again, from the first check on."""

    offset: Position


class HalvesMoved(Struct, frozen=True):
    """The half messages that changed; those that had ended before are not among them."""

    offsets: tuple[int, ...]


HalfRecord: TypeAlias = HalfOpened | HalfEnded | HalvesChecked | HalfGivenUp | HalfResumed
