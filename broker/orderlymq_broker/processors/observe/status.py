"""
What operators see of a group: rates, counters, and what needs a look.

The rule: reading the status changes nothing and costs nothing that grows with the number of messages.
The shell adds what only it knows (role, replicas, disk) and serves it as /status and as 20500.
"""

from typing import Any, Final

from orderlymq_broker.core.context import Context
from orderlymq_broker.core.effects import Now

RATE_WINDOW_MS: Final = 1_000
# Producer groups with open transactions that the status names; those with the most come first.
TRANSACTION_GROUPS_MAX: Final = 100
_RATED: Final = ("messages_in", "bytes_in", "messages_out", "bytes_out")


class Rates:
    """Messages and bytes per second, over the last full second."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._since_ms = 0
        self._before: dict[str, int] = {}
        self.per_second: dict[str, float] = dict.fromkeys(_RATED, 0.0)

    def tick(self, now: Now) -> None:
        """Close a second when it is over."""
        spent_ms = now.monotonic_ms - self._since_ms
        if spent_ms < RATE_WINDOW_MS:
            return
        counters = self._context.counters
        for name in _RATED:
            total = counters[name]
            if self._before:
                self.per_second[name] = (total - self._before.get(name, 0)) * 1000 / spent_ms
        self._before = {name: counters[name] for name in _RATED}
        self._since_ms = now.monotonic_ms


def status(context: Context, rates: Rates, *, held_pulls: int) -> dict[str, Any]:
    """Return the status as a mapping ready for JSON."""
    state = context.state

    return {
        "leading": context.leading,
        "applied": state.applied_index,
        "topics": len(state.topics.by_name),
        "groups": len(state.groups.by_name),
        "members": sum(len(state.members.of_group(name)) for name in state.members.groups()),
        "topicsVersion": state.topics_version,
        "connections": len(context.sessions),
        "heldPulls": held_pulls,
        "uncommittedBytes": context.entries.uncommitted,
        "locksHeld": state.locks.held_count,
        "duplicateWindow": len(state.dedup),
        "physicalEnd": state.physical_end,
        "floor": state.floor,
        "transactions": _transactions(context),
        "diskFull": context.disk_full,
        "rates": {name: round(rate, 1) for name, rate in rates.per_second.items()},
        "counters": dict(sorted(context.counters.items())),
        "duplicateClients": {
            client: list(connections)
            for client, connections in sorted(context.duplicate_clients.items())
        },
    }


def _transactions(context: Context) -> dict[str, Any]:
    """Return how many transactions are open, since when, and whose."""
    table = context.state.transactions
    oldest = next(iter(table.open.values()), None)
    names = [name for name, _ in table.open_by_group.most_common(TRANSACTION_GROUPS_MAX)]
    names += [name for name, _ in table.given_up_by_group.most_common(TRANSACTION_GROUPS_MAX)]

    return {
        "open": len(table.open),
        "givenUp": len(table.given_up),
        "oldestMillis": oldest.opened.opened_ms if oldest is not None else None,
        "groups": {
            name: {"open": table.open_by_group[name], "givenUp": table.given_up_by_group[name]}
            for name in sorted(set(names))
        },
    }
