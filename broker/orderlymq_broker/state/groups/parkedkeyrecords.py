"""Records of the raft log about parked keys, by the rules of ``records.py``."""

from typing import TypeAlias

from msgspec import Struct

from orderlymq_broker.state.integerranges import Long, Maybe, Natural, Position


class ParkedKey(Struct, frozen=True, array_like=True):
    """One key whose messages go to the dead letters until an administrator releases it.

    Attributes:
        offset: queue offset of the message that failed; earlier messages are not held.
        message_id: what that message is found by.
        since_ms: wall ms of the leader.
        behind: messages that followed it into the dead letters.
        last: queue offset of the last of them; counted once, however often it is handed over.
    """

    group: str
    topic: str
    queue_id: Natural
    key: str
    offset: Position
    message_id: str
    since_ms: Long
    behind: Long = 0
    last: Long = -1


class ReleasedKey(Struct, frozen=True, array_like=True):
    """Release by an administrator: the letters up to *last* hold nothing more while the lock's *epoch* lasts."""

    group: str
    topic: str
    queue_id: Natural
    key: str
    last: Long
    epoch: Long


class KeyParked(Struct, frozen=True, array_like=True, tag=100):
    """A dead letter is about to be handed over, and its key is held from it on.

    Attributes:
        epoch: of the lock under which the message failed; one that has ended changes nothing.
    """

    group: str
    topic: str
    queue_id: Natural
    key: str
    offset: Position
    message_id: str
    epoch: Long


class KeyFollowed(Struct, frozen=True, array_like=True, tag=101):
    """A message is about to follow a dead letter of its key, if the key is still held."""

    group: str
    topic: str
    queue_id: Natural
    key: str
    offset: Position
    epoch: Long


class KeyReleased(Struct, frozen=True, array_like=True, tag=102):
    """An administrator releases a key.

    Attributes:
        queue_id: where it was seen, -1 for every queue of the topic that holds it.
        first: the offset from which it was held then; where it is held from another one it stays. -1 for any.
    """

    group: str
    topic: str
    key: str
    queue_id: Maybe = -1
    first: Maybe = -1


class ParkedFound(Struct, frozen=True):
    """The key as it is held now; None when nothing holds it."""

    held: ParkedKey | None


class KeysReleased(Struct, frozen=True):
    """Keys that were held until now."""

    keys: tuple[ParkedKey, ...]


ParkedRecord: TypeAlias = KeyParked | KeyFollowed | KeyReleased
ParkedOutcome: TypeAlias = ParkedFound | KeysReleased
