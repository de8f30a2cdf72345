"""
Selectors: which queue a message goes to.

Rule: the same key leads to the same queue, whichever language sends it. Java's `SelectMessageQueueByHash` takes
`abs(arg.hashCode()) % n` of the queues sorted by broker name and queue id, and so do these selectors. A sharding key
is hashed as the text that is stored; only the argument of a selector may be hashed as a number. Where Java has no
answer (a hash of Integer.MIN_VALUE, a negative id), this module defines one. The caller supplies randomness.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Final, TypeAlias

from orderlymq.errors import SettingError
from orderlymq.message import Message
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.integers import INT32_MAX, INT32_MIN
from orderlymq_protocol.message.tags import java_string_hash

Selector: TypeAlias = Callable[[Sequence[MessageQueue], Message, object], MessageQueue]
"""Gets the topic's queues in stable order, the message and the caller's argument."""

_UINT32: Final = 0xFFFFFFFF
_UINT64: Final = 0xFFFFFFFFFFFFFFFF


def java_hash(key: object) -> int:
    """Return Java's `hashCode` of a String, Integer, Long or Boolean with this value.

    Raises:
        SettingError: The type has no counterpart whose hash is a function of its value.
    """
    match key:
        case bool():
            return 1231 if key else 1237
        case int() if INT32_MIN <= key <= INT32_MAX:
            return key
        case int() if -(2**63) <= key < 2**63:
            folded = ((key & _UINT64) ^ ((key & _UINT64) >> 32)) & _UINT32
            return folded - (_UINT32 + 1) if folded > INT32_MAX else folded
        case str():
            return java_string_hash(key)
        case _:
            raise SettingError(
                f"a sharding key is text or a 64-bit integer, not {type(key).__name__}; "
                "pass str(key) or a selector"
            )


def hash_index(key: object, count: int) -> int:
    """Return the queue number of *key* among *count* queues, as Java's hash selector does.

    Java's `Math.abs(Integer.MIN_VALUE)` is negative and its selector fails; such keys go to queue 0.
    """
    value = java_hash(key)
    return 0 if value == INT32_MIN else abs(value) % count


def modulo_index(number: int, count: int) -> int:
    """Return `number mod count`, the usual `id % size` selector; never negative.

    A negative id takes the queue of its absolute value: Java's remainder without the sign. A Java program that fixes
    its negative index with `Math.abs` gets the same.
    """
    return abs(number) % count


def by_hash(queues: Sequence[MessageQueue], _message: Message, argument: object) -> MessageQueue:
    """Select as Java's `SelectMessageQueueByHash` does."""
    return queues[hash_index(argument, len(queues))]


def by_modulo(queues: Sequence[MessageQueue], _message: Message, argument: object) -> MessageQueue:
    """Select `argument % n`; for integer ids.

    Raises:
        SettingError: The argument is not an integer.
    """
    if not isinstance(argument, int):
        raise SettingError(
            f"the modulo selector takes an integer, not {type(argument).__name__}; use key= for text"
        )
    return queues[modulo_index(argument, len(queues))]


def by_random(draw: Callable[[int], int]) -> Selector:
    """Return a selector that takes a random queue; *draw* returns a number below its argument."""

    def select(
        queues: Sequence[MessageQueue], _message: Message, _argument: object
    ) -> MessageQueue:
        return queues[draw(len(queues))]

    return select


def by_machine_room(rooms: frozenset[str], draw: Callable[[int], int]) -> Selector:
    """Return a selector among the brokers of some machine rooms.

    A broker's room is the part of its name before the `@`, as in RocketMQ.

    Raises:
        SettingError: At selection, if no queue lies in one of the rooms.
    """

    def select(
        queues: Sequence[MessageQueue], _message: Message, _argument: object
    ) -> MessageQueue:
        near = [queue for queue in queues if queue.broker_name.partition("@")[0] in rooms]
        if not near:
            raise SettingError(f"no queue of the topic lies in the machine rooms {sorted(rooms)}")
        return near[draw(len(near))]

    return select


def by_selector(
    selector: Selector, queues: Sequence[MessageQueue], message: Message, argument: object
) -> MessageQueue:
    """Return the choice of a user's selector, if it is one of the given queues.

    Raises:
        SettingError: The selector raised, returned nothing, or returned another value; nothing has been sent.
    """
    try:
        selected: object = selector(queues, message, argument)
    except SettingError:
        raise
    except Exception as error:
        raise SettingError(f"the selector raised {error!r}; nothing was sent") from error
    if isinstance(selected, MessageQueue) and selected in queues:
        return selected
    if selected is None:
        raise SettingError("the selector returned no queue; nothing was sent")
    raise SettingError(f"the selector returned {selected!r}, which is not a queue of the topic")


def pick(queue: MessageQueue | int, queues: Sequence[MessageQueue], topic: str) -> MessageQueue:
    """Return the queue that the caller names, itself or by its number in the list.

    Raises:
        SettingError: The topic has no such queue.
    """
    if isinstance(queue, MessageQueue):
        if queue.topic != topic:
            raise SettingError(f"the queue {queue} does not belong to the topic {topic}")
        return queue
    if not 0 <= queue < len(queues):
        raise SettingError(f"queue {queue} of {topic} is not between 0 and {len(queues) - 1}")
    return queues[queue]


class RoundRobin:
    """Spreads plain sends evenly; avoids brokers that failed if there is another."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next = 0

    def select(self, queues: Sequence[MessageQueue], avoid: Collection[str] = ()) -> MessageQueue:
        """Return the next queue; a queue of a broker in *avoid* only if there is no other."""
        count = len(queues)
        assert count, "a topic without queues is refused before a queue is selected"
        for _ in range(count):
            queue = queues[self._next % count]
            self._next += 1
            if queue.broker_name not in avoid:
                return queue
        queue = queues[self._next % count]
        self._next += 1
        return queue
