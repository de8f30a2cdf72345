"""Records of the raft log about half messages, by the rules of ``records.py``."""

from typing import TypeAlias

from msgspec import Struct

from orderlymq_broker.state.integerranges import Long, Position


class HalfOpened(Struct, frozen=True, array_like=True, tag=50):
    """The half message appended by the preceding record waits for its producer's decision; refused if that append is.

    Attributes:
        offset: its queue offset in the topic of half messages.
        physical: the physical offset of its stored record.
        group: the producer group that may end it and is asked about it.
        topic: the topic to which it goes when it is committed.
        unique_key: the beginning of the producer's own id of the message; the message itself has all of it.
        opened_ms: the store time of the half message, wall ms.
        immunity_ms: do not ask earlier than this after opening; negative for the setting.
    """

    offset: Position
    physical: Position
    group: str
    topic: str
    unique_key: str
    opened_ms: Position
    immunity_ms: Long = -1


class HalfEnded(Struct, frozen=True, array_like=True, tag=51):
    """A transaction has ended; for a commit, the append of its copy precedes, and if that is refused, so is this record."""

    offset: Position
    committed: bool


class HalvesChecked(Struct, frozen=True, array_like=True, tag=52):
    """Producers are asked about these half messages as soon as this record is applied."""

    offsets: tuple[Position, ...]


class HalfGivenUp(Struct, frozen=True, array_like=True, tag=53):
    """No producer answered; a copy for people is an append of the same entry."""

    offset: Position


class HalfResumed(Struct, frozen=True, array_like=True, tag=54):
    """An administrator wants a half message to be checked again, beginning with the first check."""

    offset: Position


class HalvesMoved(Struct, frozen=True):
    """The half messages that changed; those that had ended before are not among them."""

    offsets: tuple[int, ...]


HalfRecord: TypeAlias = HalfOpened | HalfEnded | HalvesChecked | HalfGivenUp | HalfResumed
