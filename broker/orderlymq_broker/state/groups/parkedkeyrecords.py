"""Records of the raft log about parked keys, by the rules of ``records.py``."""

from typing import TypeAlias

from msgspec import Struct

from orderlymq_broker.state.integerranges import Long, Maybe, Natural, Position


class ParkedKey(Struct, frozen=True, array_like=True):
    """A key whose messages go to the dead letters until an administrator releases it.

    Attributes:
        offset: the queue offset of the failed message; earlier messages are not held.
        message_id: the id by which that message can be found.
        since_ms: wall ms of the leader.
        behind: the number of messages that followed it into the dead letters.
        last: the queue offset of the last of them; each counts once, even if it is handed over several times.
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
    """A release by an administrator: letters up to *last* hold nothing any more while the lock's *epoch* lasts."""

    group: str
    topic: str
    queue_id: Natural
    key: str
    last: Long
    epoch: Long


class KeyParked(Struct, frozen=True, array_like=True, tag=100):
    """A dead letter is about to be handed over, and its key is held from that message on.

    Attributes:
        epoch: the epoch of the lock under which the message failed; an epoch that has ended changes nothing.
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
        queue_id: the queue in which it was seen, or -1 for every queue of the topic that holds it.
        first: the offset from which it was held then; a key held from another offset stays held. -1 for any.
    """

    group: str
    topic: str
    key: str
    queue_id: Maybe = -1
    first: Maybe = -1


class ParkedFound(Struct, frozen=True):
    """The key if it is held now, otherwise None."""

    held: ParkedKey | None


class KeysReleased(Struct, frozen=True):
    """Keys that were held until now."""

    keys: tuple[ParkedKey, ...]


ParkedRecord: TypeAlias = KeyParked | KeyFollowed | KeyReleased
ParkedOutcome: TypeAlias = ParkedFound | KeysReleased
