"""
Members' reports about attempts: code 20513.

The rules: each request becomes one record; each report in it counts, or is stale, on its own. A renewal that completes
no message changes only the leader's clock. The group's configuration at that moment decides what happens to a failed
message: how long its lane is parked, after how many tries it is dead, and what follows then.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from orderlymq_broker.core.capacity import check_backlog
from orderlymq_broker.core.effects import Caller, Effect, Now
from orderlymq_broker.core.requestcontext import Context, RequestRefused, answer, unanswered
from orderlymq_broker.core.responses import answer_when_applied
from orderlymq_broker.processors.groups.clientids import claim
from orderlymq_broker.processors.groups.locks import check_client
from orderlymq_broker.processors.lanes.fetch import by_key
from orderlymq_broker.processors.lanes.leases import LaneLeases
from orderlymq_broker.state.groups.failurepolicy import dead_policy
from orderlymq_broker.state.lanes.lanerecords import (
    Answered,
    LanesMoved,
    LanesReported,
    Report,
    ReportKind,
)
from orderlymq_broker.state.records import GroupSet, Outcome
from orderlymq_protocol.body import lanes as wire
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.header.lanes import CompleteLanesHeader

_KINDS: Final[Mapping[str, ReportKind]] = {
    wire.DONE: ReportKind.DONE,
    wire.RENEW: ReportKind.RENEW,
    wire.RETRY: ReportKind.RETRY,
    wire.RELEASE: ReportKind.RELEASE,
}
_ENDING: Final = "the lease had expired before the renewal arrived"
_COUNTED: Final[Mapping[str, str]] = {
    wire.DONE: "lanes_completed",
    wire.PARKED: "lanes_parked",
    wire.DEAD: "lanes_parked",
    wire.HELD: "lanes_held",
    wire.RELEASED: "lanes_released",
    wire.STALE: "lanes_stale",
}


class LaneReporter:
    """Serves completions."""

    def __init__(self, context: Context, leases: LaneLeases) -> None:
        self._context = context
        self._leases = leases

    def complete(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 20513: completions, renewals and failures of attempts."""
        header = CompleteLanesHeader.from_ext(request.ext)
        group, topic, client_id = header.consumer_group, header.topic, header.client_id
        check_client(client_id, group)
        config = by_key(self._context, group)
        reports = wire.LaneReports.from_json(request.body).lanes
        _check(reports)
        context = self._context
        claim(context, client_id, caller, now)
        context.sessions.last_seen(group, client_id, caller.connection, now)
        # By position in the request: the answers known already, and the reports for the record.
        known: dict[int, Answered] = {}
        records: list[Report] = []
        for place, report in enumerate(reports):
            renewed = self._renew(group, topic, client_id, report, now)
            if renewed is not None:
                known[place] = renewed
            else:
                records.append(self._record(group, topic, report, config, now))
        if not records:
            return answer(
                request, caller, body=_body(reports, [known[each] for each in sorted(known)])
            )
        check_backlog(context)
        kept = unanswered(request)

        def applied(outcomes: Sequence[Outcome], _: Now) -> list[Effect]:
            outcome = outcomes[0]
            assert isinstance(outcome, LanesMoved), outcome
            judged = iter(outcome.answers)
            answers = [
                known[place] if place in known else next(judged) for place in range(len(reports))
            ]
            for each in outcome.answers:
                if each.verdict in _COUNTED:
                    context.counters[_COUNTED[each.verdict]] += 1
            return answer(kept, caller, body=_body(reports, answers))

        return answer_when_applied(
            kept, caller, [LanesReported(group, topic, client_id, tuple(records))], then=applied
        )

    def _renew(
        self, group: str, topic: str, client_id: str, report: wire.LaneReport, now: Now
    ) -> Answered | None:
        """Renew a lease; return the answer, or None if the report needs a record."""
        if report.result != wire.RENEW:
            return None
        queue = self._context.state.lanes.queues_of(group, topic).get(report.queue_id)
        lane = None if queue is None else queue.attempt_of(report.lane, report.attempt)
        if lane is None or lane.holder != client_id:
            return None
        attempt = (group, topic, report.queue_id, report.lane, report.attempt)
        if not self._leases.renew(attempt, lane.lease_ms, now):
            return Answered(wire.STALE, remark=_ENDING)
        if lane.taken and lane.head[0] <= report.offset:
            return None

        return Answered(wire.RENEWED, lane.tries)

    def _record(
        self, group: str, topic: str, report: wire.LaneReport, config: GroupSet, now: Now
    ) -> Report:
        kind = _KINDS[report.result]
        if kind != ReportKind.RETRY:
            return Report(report.queue_id, report.lane, report.attempt, kind, report.offset)
        queue = self._context.state.lanes.queues_of(group, topic).get(report.queue_id)
        lane = None if queue is None else queue.lanes.get(report.lane)
        # If messages before the failed one are done now, the failed one is not the message that failed before.
        tries = 0
        if lane is not None and lane.head and lane.head[0] > report.offset:
            tries = lane.tries
        delay_ms = report.delay_millis
        if delay_ms < 0:
            delay_ms = config.pause_ms(tries + 1)
        maximum = config.retry_max_times if report.tries_max is None else report.tries_max

        return Report(
            report.queue_id,
            report.lane,
            report.attempt,
            kind,
            report.offset,
            now.wall_ms + delay_ms,
            maximum,
            dead_policy(config.on_dead_letter),
            report.reason[: wire.REASON_LENGTH_MAX],
        )


def _check(reports: Sequence[wire.LaneReport]) -> None:
    """Refuse a request with too many reports or an unknown result.

    Raises:
        RequestRefused: it has too many reports, or one with an unknown result (1).
    """
    if len(reports) > wire.LANES_MAX:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"{len(reports)} lanes in one request are too many; send at most {wire.LANES_MAX}",
        )
    for report in reports:
        if report.result not in _KINDS:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"result {report.result[:32]!r} is not one of {', '.join(wire.RESULTS)}",
            )


def _body(reports: Sequence[wire.LaneReport], answers: Sequence[Answered]) -> bytes:
    return wire.LaneVerdicts(
        tuple(
            wire.LaneVerdict(
                report.queue_id,
                report.lane,
                report.attempt,
                each.verdict,
                each.tries,
                each.due_ms,
                each.remark,
            )
            for report, each in zip(reports, answers, strict=True)
            if each.verdict != wire.DONE
        )
    ).to_json()
