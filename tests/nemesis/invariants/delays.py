"""
The laws of delayed messages, read from a history. Pure.

No message is delivered before its time. Each acknowledged one becomes visible once and is delivered in the end. A
message begins to wait when the leader stores it, which is after its producer began to send it. So no consumer may
have it before that beginning plus its delay. All processes share the clocks of one machine.
"""

from collections.abc import Iterable
from typing import Final

from orderlymq.oracle.verdict import Event, Kind
from tests.nemesis.invariants.breaches import Breach, Ruling, by_order, of_topic, zeros

LATER: Final = "later"
LATER_QUEUES: Final = 4
#: The delay levels and delay times that producers send with, by turns: (level, milliseconds).
DELAYS: Final = ((1, 1_000), (0, 2_500), (2, 5_000), (0, 700), (1, 1_000), (3, 10_000))
DELAY_MAX_S: Final = max(delay_ms for _, delay_ms in DELAYS) / 1000
_DELAY: Final = "delay "
_MS: Final = 1_000_000
#: Times are stored in whole milliseconds of the wall clock, and histories are written by the monotonic one. Time
#: services let the two drift apart by up to half a millisecond per second.
SLACK_MS: Final = 10


def detail_of(delay_ms: int) -> str:
    """Return the detail that a send records about its delay."""
    return f"{_DELAY}{delay_ms}"


def judge(events: Iterable[Event]) -> Ruling:
    """Judge all delayed messages."""
    history = sorted(of_topic(events, LATER), key=lambda event: event.at)
    sends: dict[str, Event] = {}
    firsts: dict[str, Event] = {}
    for event in history:
        if event.kind is Kind.SEND:
            sends.setdefault(event.message, event)
        elif event.kind is Kind.DELIVER:
            firsts.setdefault(event.message, event)
    due = {message: send.at + _delay_ms(send) * _MS for message, send in sends.items()}
    breaches = by_order(history)
    for message, delivery in firsts.items():
        if message not in sends:
            breaches.append(Breach("delivered, and nobody has sent it", message, (delivery,)))
        elif delivery.at + SLACK_MS * _MS < due[message]:
            early_ms = (due[message] - delivery.at) / _MS
            why = f"delivered {early_ms:.0f} ms before its time"
            breaches.append(Breach(why, message, (sends[message], delivery)))
    counts = {
        "sent": len(sends),
        "acknowledged": len({e.message for e in history if e.kind is Kind.ACK}),
        "delivered": len(firsts),
        "delivered more than 1 s late": sum(
            delivery.at > due[message] + 1_000 * _MS
            for message, delivery in firsts.items()
            if message in due
        ),
    }
    return Ruling("delays", counts, tuple(breaches), zeros(counts, ("acknowledged", "delivered")))


def _delay_ms(send: Event) -> int:
    return int(send.detail.removeprefix(_DELAY))
