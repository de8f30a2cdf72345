"""
Which dead letters were sent again: nobody is asked about one twice, and reading begins behind them.

Rules: what was sent stays sent. What is forgotten here is asked again. A topic of letters that was deleted and made again counts its
offsets again, so the letter before a beginning is known by its identity.
"""

from collections import OrderedDict
from typing import Final, NamedTuple, TypeVar

from orderlymq_protocol.body.messagequeue import MessageQueue

K = TypeVar("K")
V = TypeVar("V")

# Identities of 32 characters: about a megabyte.
LETTERS_MAX: Final = 10_000
QUEUES_MAX: Final = 1_000


class Begin(NamedTuple):
    """The first offset of a queue of letters before which all were sent, and the identity of the letter before it."""

    offset: int
    before: str


class SentLetters:
    """Letters that are known to be sent again; what was looked at longest ago is forgotten first."""

    def __init__(self) -> None:
        self._letters: OrderedDict[str, None] = OrderedDict()
        self._begins: OrderedDict[MessageQueue, Begin] = OrderedDict()

    def __contains__(self, letter: str) -> bool:
        if letter not in self._letters:
            return False
        self._letters.move_to_end(letter)
        return True

    def add(self, letter: str) -> None:
        """Remember a letter by its identity."""
        _put(self._letters, letter, None, LETTERS_MAX)

    def begin(self, queue: MessageQueue) -> Begin:
        """Return where a look at a queue of letters begins, if the letter before is still there."""
        return self._begins.get(queue, Begin(0, ""))

    def begin_at(self, queue: MessageQueue, begin: Begin) -> None:
        """Have the next look at a queue begin there."""
        _put(self._begins, queue, begin, QUEUES_MAX)


def _put(table: OrderedDict[K, V], key: K, value: V, limit: int) -> None:
    table[key] = value
    table.move_to_end(key)
    while len(table) > limit:
        table.popitem(last=False)
