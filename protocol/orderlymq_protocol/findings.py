"""
Findings of a leader about groups, in words: its log, `orderlymq group show` and the console use the same ones.

Rule: each kind has a sentence and a cure. Clients choose ids and keys, so code that prints the words keeps them on one line.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from orderlymq_protocol.plurals import counted


@dataclass(frozen=True, slots=True)
class Finding:
    """A kind of finding.

    Attributes:
        subject: members of a row that identify a finding; two rows with the same values are one finding.
        sentence: format string for the members of a row.
        cure: format string for the members of a row; empty if the cure depends on the row.
    """

    subject: tuple[str, ...]
    sentence: str
    cure: str


#: Each key is the name of a list in the status of a leader.
FINDINGS: Final[Mapping[str, Finding]] = {
    "blocked": Finding(
        ("group", "topic", "queue", "offset"),
        "Group {group} makes no progress in queue {queue} of {topic} at offset {offset} since {since}: "
        "message {messageId}, key {key}, held by {holder}; {listener}.",
        "",
    ),
    "failing": Finding(
        ("group", "messageId", "dead"),
        "In group {group} message {messageId} of {topic}, key {key}, failed {tried}{letter}.",
        "`orderlymq message show {quoted} --topic {topic}`",
    ),
    "expiring": Finding(
        ("group", "topic", "queue", "holder"),
        "The lock of queue {queue} of {topic} in group {group} ends in {leftSeconds} s: {holder} has missed renewals.",
        "Check whether the holder hangs; another member takes the queue over when the lease ends.",
    ),
    "disagreeing": Finding(
        ("group", "members"),
        "Members of group {group} disagree: {members} differ in {difference}.",
        "Give all members the same subscriptions and settings, or consumer groups of their own; "
        "otherwise messages are skipped.",
    ),
    "duplicates": Finding(
        ("clientId",),
        "Two clients have the id {clientId} on two connections at the same time: {addresses}.",
        "Give each process its own instance name; both consume the same queues now.",
    ),
    "notHolding": Finding(
        ("group",),
        "Group {group} has onDeadLetter: HoldKey, but a member reported a dead letter without "
        "holding its key, as clients of RocketMQ do; the later messages of the key are delivered.",
        "Consume with the Python SDK, or choose StopQueue, which works with all clients.",
    ),
    "holdsFull": Finding(
        ("group",),
        "Group {group} has parked {keys} keys, the largest number allowed: its next dead letter "
        "stops a queue.",
        "Repair the cause and release the keys (orderlymq group parked, orderlymq group release).",
    ),
    "hotQueues": Finding(
        ("topic", "queue_id"),
        "Queue {queue_id} of {topic} got {share:.0%} of the topic's messages in a minute.",
        "Look for a key that is too coarse (orderlymq pipeline run skew-report), or for "
        "producers that choose the queue themselves. More queues do not help one key.",
    ),
    "hotKeys": Finding(
        ("topic", "key"),
        "Key {key} has about {share:.0%} of the messages of {topic}.",
        "Choose a finer key if the order allows it: the messages of one key are consumed one "
        "after the other.",
    ),
}


def words(kind: str, row: Mapping[str, Any]) -> tuple[str, str]:
    """Return the sentence and the cure of a row of a status."""
    found = FINDINGS[kind]
    shown = {name: _shown(value) for name, value in row.items()}
    match kind:
        case "blocked":
            shown |= {"holder": row["holder"] or "nobody", "since": time_of(row["since"])}
            shown["listener"] = _listener(row)
        case "failing":
            shown["tried"] = counted(row["tries"], "time")
            shown["letter"] = (
                ", a dead letter, which `orderlymq message resend` sends again"
                if row["dead"]
                else ""
            )
            # People copy it into a shell, and the producer chose the id.
            shown["quoted"] = shlex.quote(str(row["messageId"]))
        case "expiring":
            shown["leftSeconds"] = f"{row['leftMillis'] / 1000:.0f}"
        case _:
            pass

    return found.sentence.format(**shown), found.cure.format(**shown) or _cure_of_blocked(row)


def time_of(wall_ms: int) -> str:
    """Return a time as text; a number that is not a time is returned unchanged, because a client may have sent it."""
    try:
        return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return str(wall_ms)


def _shown(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return " and ".join(map(str, value))
    return "none" if value is None else value


def _listener(row: Mapping[str, Any]) -> str:
    """Return the consumer's report about its listener; brokers of earlier releases do not ask for it."""
    said = str(row.get("listener") or "its consumer reports nothing about its listener")
    called = row.get("listenerCalled")
    if called and row.get("listenerRunning"):
        return said.replace("was called", f"was called at {time_of(called)}")

    return f"{said}, called last at {time_of(called)}" if called else said


def _cure_of_blocked(row: Mapping[str, Any]) -> str:
    """Return the advice for a queue that stands still; a holder that is not connected has no log to read."""
    if row.get("connected") is False and row.get("leaseMillis"):
        return (
            f"Another member takes over when its lease of {row['leaseMillis'] / 1000:.0f} s ends, "
            "or when its death is proven. Look at the process: if it hangs, end it."
        )
    if row.get("byKey"):
        return (
            "The group consumes by key: look at its lanes, and check whether its members fetch. "
            "A reset of its offsets drops all messages that still wait in lanes of the queue."
        )
    if row.get("listenerRunning"):
        return (
            "Look at its stack in the console, and restart that process or skip the message there."
        )

    members = (
        ""
        if row.get("holder")
        else "In an ordered group, compare the members: all must subscribe to the same topics. "
    )
    return (
        f"{members}See the listener's log and repair the cause, or skip the message in the console; "
        "`orderlymq group reset` moves the group's offsets of the topic."
    )
