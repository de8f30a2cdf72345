"""The committed log, read once in its order by a reader that shares no code with the state machine."""

from collections import Counter
from dataclasses import dataclass, field

Key = tuple[str, str, int]  # group, topic, queue


@dataclass(slots=True)
class ModelLock:
    """The state of one lock, by the log; free if *client* is empty."""

    client: str = ""
    epoch: int = 0
    stamp: int = 0
    committed: int = 0  # offset when the present holder got it
    delivered: int = 0  # newest epoch under which something was delivered


@dataclass(slots=True)
class Model:
    """The committed log, read by a reader that shares no code with the state machine."""

    index: int = 0
    token: int = 0  # the greatest operator token
    entries: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])  # term, checksum
    locks: dict[Key, ModelLock] = field(default_factory=dict)
    epochs_gone: int = 0  # newest epoch of a lock that was removed with its topic or its group
    offsets: dict[Key, int] = field(default_factory=dict)
    topics: dict[int, str] = field(default_factory=dict)
    places: dict[tuple[int, str], tuple[int, int]] = field(default_factory=dict)
    at: dict[tuple[int, int, int], str] = field(default_factory=dict)  # topic id, queue, offset
    ends: Counter[tuple[int, int]] = field(default_factory=Counter)
    due: dict[str, int] = field(default_factory=dict)  # delayed messages: wall ms
    floors: Counter[tuple[int, int]] = field(default_factory=Counter)  # first offset kept
    halves: dict[int, str] = field(default_factory=dict)  # open half messages by offset: unique key
