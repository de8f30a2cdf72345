"""
Findings of the brokers about a group: for `orderlymq group show`. Pure.

Rule: producers and consumers choose ids and keys, so none of these begins a line or is read as part of a command.
"""

import shlex
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from orderlymq.cli.session import one_line
from orderlymq_protocol.plurals import counted

#: Kinds of findings in a broker's status that name one group.
_OF_GROUP: Final = ("blocked", "failing", "expiring", "disagreeing")
# More lines than this would push the table of queues off the screen.
_SHOWN_MAX: Final = 10
#: What to do about a queue that stands still, by whether its listener runs.
_WAY_OUT: Final = {
    True: "Look at its stack in the console, and restart that process, or skip the message there.",
    False: "See the listener's log and repair the cause, or skip the message in the console; "
    "`orderlymq group reset` moves the offsets of the topic.",
}


def findings(statuses: Iterable[Mapping[str, Any]], group: str) -> dict[str, Any]:
    """Return the findings of the brokers about *group*; ``lagSeconds`` is None when no broker reports it."""
    found: dict[str, Any] = {"lagSeconds": None, **{kind: [] for kind in _OF_GROUP}}
    found["duplicates"] = []
    for status in statuses:
        watch = status.get("watch")
        if not isinstance(watch, Mapping):
            continue  # a broker of RocketMQ, or of an earlier release
        ages = [row["seconds"] for row in watch.get("lag", []) if row["group"] == group]
        found["lagSeconds"] = max([found["lagSeconds"] or 0.0, *ages])
        for kind in _OF_GROUP:
            found[kind] += [row for row in watch.get(kind, []) if row["group"] == group]
        found["duplicates"] += [
            row for row in watch.get("duplicates", []) if group in row["groups"]
        ]

    return found


def lines(found: Mapping[str, Any]) -> list[str]:
    """Return the findings as lines for people, each with what to do."""
    said = [
        f"Blocked: queue {row['queue']} of {row['topic']} stands at offset {row['offset']} since "
        f"{_time(row['since'])}: message {row['messageId']}, key {row['key']}, held by "
        f"{row['holder'] or 'nobody'}; {_listener(row)}. {_way_out(row)}"
        for row in found["blocked"]
    ]
    said += [
        f"Failing: message {row['messageId']} of {row['topic']}, key {row['key']}, failed "
        f"{counted(row['tries'], 'time')}{', a dead letter' if row['dead'] else ''}. "
        f"`orderlymq message show {shlex.quote(str(row['messageId']))} --topic {row['topic']}` shows it."
        for row in found["failing"]
    ]
    said += [
        f"Expiring: the lock of queue {row['queue']} of {row['topic']} ends in "
        f"{row['leftMillis'] / 1000:.0f} s; {row['holder']} has missed renewals."
        for row in found["expiring"]
    ]
    said += [
        f"Members disagree: {' and '.join(row['members'])} in {row['difference']}. Give all "
        "members the same subscriptions."
        for row in found["disagreeing"]
    ]
    said += [
        f"Two clients with one id: {row['clientId']} at {' and '.join(row['addresses'])}. Give "
        "each an instance name of its own."
        for row in found["duplicates"]
    ]
    left = len(said) - _SHOWN_MAX

    return [one_line(each) for each in said[:_SHOWN_MAX]] + (
        [f"And {left} more; --output json shows all."] if left > 0 else []
    )


def _way_out(row: Mapping[str, Any]) -> str:
    """Return the advice for a queue that stands still; a holder that is away has no log to read."""
    if row.get("connected") is False and row.get("leaseMillis"):
        lease_s = row["leaseMillis"] / 1000
        return f"Another member takes over when its lease of {lease_s:.0f} s ends. Look at the process: if it hangs, end it."

    if row.get("byKey"):
        return (
            "The group takes keys: look at its lanes, and whether its members fetch. A reset of its offsets ends what "
            "all lanes of the queue owe."
        )
    return _WAY_OUT[bool(row.get("listenerRunning"))]


def _listener(row: Mapping[str, Any]) -> str:
    """Return the consumer's report about its listener; brokers of earlier releases do not ask."""
    words = str(row.get("listener") or "its consumer reports nothing of its listener")
    called = row.get("listenerCalled")
    if called and row.get("listenerRunning"):
        return words.replace("was called", f"was called at {_time(called)}")

    return f"{words}, called last at {_time(called)}" if called else words


def _time(wall_ms: int) -> str:
    try:
        return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return str(wall_ms)  # a client has said it
