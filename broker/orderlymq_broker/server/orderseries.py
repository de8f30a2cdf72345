"""
Metrics of order and load: the holder of each queue, how long keys have waited for a person, and the backlog of each group.

The rule: only the leader reports, and each metric is limited. If there are too many locks, those that changed hands
last are kept.
"""

from collections import Counter
from collections.abc import Mapping
from heapq import nlargest
from operator import attrgetter
from typing import TypeAlias

from orderlymq_broker.core.requestcontext import Context
from orderlymq_broker.processors.lanes.overview import NAMES
from orderlymq_broker.processors.observe.status import SERIES_MAX, Series, series
from orderlymq_broker.state.broker import BrokerState
from orderlymq_broker.state.lanes.lane import LaneState
from orderlymq_protocol.names import is_system_group

_Labels: TypeAlias = tuple[str, ...]


def order_series(context: Context, wall_ms: int) -> dict[str, Series]:
    """Return the metrics as of *wall_ms*; rows only while this replica leads."""
    state = context.state
    held = state.locks.held() if context.leading else ()
    # With 250,000 locks, sorting takes 100 ms, but this 30 ms.
    locks = nlargest(SERIES_MAX, held, key=attrgetter("held_since_ms"))
    holders: list[tuple[_Labels, float]] = [
        ((lock.group, lock.topic, str(lock.queue_id), lock.client_id), float(lock.epoch))
        for lock in locks
    ]
    lanes = _lanes_since(state) if context.leading else {}
    ages = _ages(_held_since(state, lanes), wall_ms) if context.leading else []

    return {
        **series(
            ("group", "topic", "queue", "holder"),
            {"queue_lock_epoch": ("Epoch of a queue's lock, by holder", holders)},
        ),
        **series(
            ("group",),
            {
                "parked_oldest_seconds": (
                    "Age of the oldest key or lane of a consumer group that waits for a release",
                    ages,
                )
            },
        ),
        **series(
            ("group", "state"),
            {
                "lane_oldest_seconds": (
                    (
                        "Time for which the oldest lane of a consumer group in a state has been in "
                        "that state"
                    ),
                    _ages(lanes, wall_ms),
                )
            },
        ),
    }


def backlog_series(
    context: Context, watched: Mapping[str, Series], *, is_examined: bool
) -> dict[str, Series]:
    """Return how many messages each group has to consume, from the *watched* series by group and topic.

    An autoscaler takes a missing row for a problem, and a zero for permission to stop all consumers. So a group that
    has consumed everything has a row, but there are no rows before the leader has examined the groups. A broadcasting
    group has none, because only its members know what they have consumed.
    """
    lags = watched["group_lag_messages"].rows
    counts: Counter[str] = Counter()
    if is_examined and len(lags) < SERIES_MAX:
        state = context.state
        counts.update(
            {
                name: 0
                for name in state.groups.by_name
                if not is_system_group(name) and not state.only_broadcasts(name)
            }
        )
    for (group, _), messages in lags:
        counts[group] += int(messages)

    return series(
        ("group",),
        {
            "group_backlog_messages": (
                (
                    "Messages of all topics that a consumer group has not consumed; 0 if it has "
                    "consumed all"
                ),
                [((group,), float(count)) for group, count in counts.most_common(SERIES_MAX)],
            )
        },
    )


def _ages(since: Mapping[_Labels, int], wall_ms: int) -> list[tuple[_Labels, float]]:
    """Return the age of each in seconds, the oldest first."""
    ages = [(labels, max(0.0, (wall_ms - since_ms) / 1000)) for labels, since_ms in since.items()]

    return sorted(ages, key=lambda each: -each[1])


def _held_since(state: BrokerState, lanes: Mapping[_Labels, int]) -> dict[_Labels, int]:
    """Return since when the oldest key or lane of each group has been held."""
    found: dict[_Labels, int] = {
        (group,): state.parked.oldest_ms(group) for group in state.parked.counts()
    }
    for (group, name), since_ms in lanes.items():
        if name == NAMES[LaneState.HELD]:
            found[group,] = min(found.get((group,), since_ms), since_ms)

    return found


def _lanes_since(state: BrokerState) -> dict[_Labels, int]:
    """Return since when the oldest lane of each group and state has been in that state."""
    found: dict[_Labels, int] = {}
    for queue in state.lanes.busy.by_place.values():
        for lane_state, name in NAMES.items():
            lane = next(queue.in_state(lane_state), None)
            if lane is not None:
                place = (queue.place[0], name)
                found[place] = min(found.get(place, lane.since_ms), lane.since_ms)

    return found
