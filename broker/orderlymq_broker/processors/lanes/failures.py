"""
What the log says of a try that has failed: when the lane is handed out again, and what follows when the message is dead.

The rule: the group decides at that moment; what the client wants comes before it (``state/groups/failurepolicy.py``).
"""

from orderlymq_broker.core.effects import Now
from orderlymq_broker.state.groups.failurepolicy import backoff_ms, dead_policy
from orderlymq_broker.state.lanes.lane import Lane
from orderlymq_broker.state.lanes.lanerecords import Report, Said
from orderlymq_broker.state.records import GroupSet
from orderlymq_protocol.body.lanes import REASON_LENGTH_MAX, LaneReport


def failed(report: LaneReport, lane: Lane | None, config: GroupSet, now: Now) -> Report:
    """Return the record of a failure, which may be one of a lane that nobody has any more."""
    # What comes before the message that failed was not the one that failed before.
    tries = 0
    if lane is not None and lane.head and lane.head[0] > report.offset:
        tries = lane.tries
    delay_ms = report.delay_millis if report.delay_millis >= 0 else backoff_ms(tries + 1)
    maximum = config.retry_max_times if report.tries_max is None else report.tries_max

    return Report(
        report.queue_id,
        report.lane,
        report.attempt,
        Said.RETRY,
        report.offset,
        now.wall_ms + delay_ms,
        maximum,
        dead_policy(config.on_dead_letter),
        report.reason[:REASON_LENGTH_MAX],
    )
