"""Records of the raft log about timer messages, by the rules of ``records.py``."""

from msgspec import Struct

from orderlymq_broker.state.integerranges import Position


class TimerRef(Struct, frozen=True, array_like=True):
    """One timer message: when it is due (wall ms), and its place in the timer topic."""

    due_ms: Position
    offset: Position
    physical: Position


class TimersEnded(Struct, frozen=True, array_like=True, tag=90):
    """Timers end: they are *cancelled*, or the copies of delivered ones are appends of the same entry."""

    timers: tuple[TimerRef, ...]
    cancelled: bool = False
