"""
Remember which dead letters were sent again, so that no broker is asked about one twice and reading begins behind them.

Rules: a letter that was sent stays sent. A letter that is forgotten here is asked about again. If a topic of letters is deleted and
created again, its offsets start again, so the letter before a beginning is recognized by its identity.
"""

from collections import OrderedDict
from typing import Final, NamedTuple, TypeVar

from orderlymq_protocol.body.messagequeue import MessageQueue

K = TypeVar("K")
V = TypeVar("V")

# An identity has 32 characters, so these take about a megabyte.
LETTERS_MAX: Final = 10_000
QUEUES_MAX: Final = 1_000


class Begin(NamedTuple):
    """An offset in a queue of letters before which all letters were sent, and the identity of the letter before it."""

    offset: int
    before: str


class SentLetters:
    """Letters that are known to be sent again; the one that was used longest ago is forgotten first."""

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
        """Return where reading a queue of letters begins, if the letter before that offset is still there."""
        return self._begins.get(queue, Begin(0, ""))

    def begin_at(self, queue: MessageQueue, begin: Begin) -> None:
        """Make the next reading of a queue begin there."""
        _put(self._begins, queue, begin, QUEUES_MAX)


def _put(table: OrderedDict[K, V], key: K, value: V, limit: int) -> None:
    table[key] = value
    table.move_to_end(key)
    while len(table) > limit:
        table.popitem(last=False)
