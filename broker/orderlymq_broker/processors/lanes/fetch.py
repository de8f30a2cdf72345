"""
Fetches of lanes: code 20512, answered immediately or held until there are lanes to hand out.

The rules: a hand-out is in the log before its fetch is answered. For each group and topic, only one proposal is in
progress at a time. It serves all waiting fetches, so no plan depends on what another plan has taken. A repeated fetch
gets the attempts of the first one, even if its answer was lost or its leader is gone. A member waits with one fetch
per topic. The work that one turn of the event loop plans is limited, for any number of groups, topics and members; the
next turn continues with the pair that has waited longest. ``planner.py`` decides who gets what.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from orderlymq_broker.core.capacity import BUSY, check_backlog
from orderlymq_broker.core.deadlines import DeadlineQueue
from orderlymq_broker.core.effects import Caller, CallSoon, Effect, Now, Propose, Refusal
from orderlymq_broker.core.requestcontext import Context, RequestRefused, answer, unanswered
from orderlymq_broker.processors.fetch.checks import check_broker, readable_topic
from orderlymq_broker.processors.fetch.filter import registered_filter
from orderlymq_broker.processors.fetch.read import BULK_SIZE_MAX
from orderlymq_broker.processors.groups.clientids import claim
from orderlymq_broker.processors.groups.groupcreation import find_group
from orderlymq_broker.processors.groups.locks import LEASE_MS_MAX, LEASE_MS_MIN, check_client
from orderlymq_broker.processors.groups.offsets import offsets_room
from orderlymq_broker.processors.lanes.leases import LaneLeases
from orderlymq_broker.processors.lanes.planner import (
    BYTES_READ,
    LANE_OFFSETS_MAX,
    LANES_MAX,
    Fetch,
    Plan,
    Round,
    Turn,
)
from orderlymq_broker.processors.lanes.scan import Message, messages_at
from orderlymq_broker.state.lanes.lane import Lane, LaneState
from orderlymq_broker.state.lanes.lanerecords import Granted, LanesFetched, LanesGranted
from orderlymq_broker.state.lanes.queue import LaneQueue
from orderlymq_broker.state.lanes.table import MOVED
from orderlymq_broker.state.records import Append, GroupSet, MemberSeen, Outcome, Record, Refused
from orderlymq_broker.state.topics.topics import Topic
from orderlymq_protocol.body import lanes as wire
from orderlymq_protocol.body.clients import BROADCASTING
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.header.lanes import FetchLanesHeader

# A client's own time-out is 30 s; after a longer wait, no client would receive the answer.
SUSPEND_MS_MAX: Final = 30_000
# The limit of waiting fetches, each some KB. To admit one more, the connection with the most of them gives some up.
WAITING_MAX: Final = 100_000
# The fetches that are given up together, because finding the connection takes some ms if there are 50,000.
_GIVEN_UP_COUNT: Final = 64
# Fetches that are ended in one turn.
SERVED_COUNT_MAX: Final = 256
# The work that one turn plans, counted in lanes: about 10 ms.
PLANNED_MAX: Final = 512
# The number of skipped fetches that takes as much time as one lane.
_PASSED_OVER: Final = 64
DEFAULT_LEASE_MS: Final = 30_000

NOT_BY_KEY: Final = "group[{group}] consumes by queue locks (concurrency: Queue): lock its queues, or set concurrency: Key"

_Pair = tuple[str, str]


@dataclass(slots=True, eq=False)
class Waiting:
    """One fetch that has no answer yet.

    Attributes:
        deadline_ms: when it is answered even without lanes.
        is_first: it was not checked yet whether it is a repeat.
        done: it was answered, or its connection is closed.
    """

    request: RemotingCommand
    caller: Caller
    header: FetchLanesHeader
    deadline_ms: int
    is_first: bool = True
    done: bool = False


class LaneFetcher:
    """Serves fetches and keeps those that wait.

    Attributes:
        waiting_count: how many fetches wait.
    """

    def __init__(self, context: Context, leases: LaneLeases) -> None:
        self._context = context
        self._leases = leases
        self._waiting: dict[_Pair, dict[str, Waiting]] = {}
        self._by_topic: dict[str, dict[_Pair, None]] = {}
        self._deadlines: DeadlineQueue[Waiting] = DeadlineQueue()
        self._by_connection: dict[int, dict[Waiting, None]] = {}
        self.waiting_count = 0
        # Pairs whose last proposal changed nothing: the next one waits for an event or the next tick.
        self._stuck: dict[_Pair, None] = {}
        # The pairs of group and topic to plan for, those that have waited longest first, each with the number of its
        # fetches to plan (None for all); and the work that this turn has room for.
        self._to_plan: OrderedDict[_Pair, int | None] = OrderedDict()
        self._room = PLANNED_MAX
        self._goes_on = False
        self._turns: dict[_Pair, Turn] = {}
        # The limit of lanes was reached when a fetch was served: waiting fetches get more once there are fewer lanes.
        self._was_full = False

    def fetch(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 20512: fetch lanes."""
        header = FetchLanesHeader.from_ext(request.ext)
        check_client(header.client_id, header.consumer_group)
        self._check(header)
        context = self._context
        claim(context, header.client_id, caller, now)
        context.sessions.last_seen(header.consumer_group, header.client_id, caller.connection, now)
        wait_ms = min(max(0, header.suspend_timeout_millis), SUSPEND_MS_MAX)
        effects = self._make_room() if self.waiting_count >= WAITING_MAX else []
        pair = _pair(header)
        former = self._waiting.get(pair, {}).get(header.client_id)
        effects += [] if former is None else self._end(former, "SUPERSEDED")
        waiting = Waiting(unanswered(request), caller, header, now.monotonic_ms + wait_ms)
        self._waiting.setdefault(pair, {})[header.client_id] = waiting
        self._by_topic.setdefault(header.topic, {})[pair] = None
        self._deadlines.set(waiting, waiting.deadline_ms)
        self.waiting_count += 1
        self._by_connection.setdefault(caller.connection, {})[waiting] = None

        return [*effects, *self.moved((pair,), now)]

    def _make_room(self) -> list[Effect]:
        """End the oldest fetches of the connection that has the most; its clients send them again."""
        most = max(self._by_connection.values(), key=len)
        given_up = [*islice(most, _GIVEN_UP_COUNT)]

        return [effect for each in given_up for effect in self._end(each, "TOO_MANY_WAIT")]

    # -- events ------------------------------------------------------------------------------------

    def appended(self, records: Iterable[Append], now: Now) -> list[Effect]:
        """Serve the fetches of topics that received messages."""
        if not self._waiting:
            return []
        by_id = self._context.state.topics.by_id
        topics = {record.topic_id: by_id.get(record.topic_id) for record in records}
        names = [topic.name for topic in topics.values() if topic is not None]

        return self.moved([pair for name in names for pair in self._by_topic.get(name, ())], now)

    def moved(self, pairs: Iterable[_Pair], now: Now) -> list[Effect]:
        """Serve the fetches of groups and topics that may have lanes to hand out again, some of them in later turns."""
        for pair in pairs:
            if pair in self._waiting:
                self._to_plan[pair] = None

        return self._plan_on(now)

    def tick(self, now: Now) -> list[Effect]:
        """Answer the fetches whose time is up, and hand out parked lanes that are due."""
        self._begin_turn()  # in case the effect that should have begun it was lost
        stuck, self._stuck = self._stuck, {}
        over = [
            _pair(waiting.header) for waiting in self._deadlines.pop_expired(now.monotonic_ms + 1)
        ]
        parked = [
            pair
            for queue in self._context.state.lanes.having[LaneState.PARKED].values()
            if (pair := queue.place[:2]) in self._waiting and self._leases.due(queue, now.wall_ms)
        ]

        has_room = self._was_full and self._context.state.lanes.total < LANES_MAX
        self._was_full &= not has_room

        return self.moved((*stuck, *over, *parked, *(self._waiting if has_room else ())), now)

    def recheck_waiting(self, now: Now, groups: Collection[str] | None = None) -> list[Effect]:
        """Check the fetches of some groups, or all, again: what they wait for may be deleted."""
        known, topics = self._context.state.groups.by_name, self._context.state.topics.by_name
        if groups is None:
            gone = [each for each in self._turns if each[0] not in known or each[1] not in topics]
            for pair in gone:
                del self._turns[pair]
        waiting = [each for each in self._waiting if groups is None or each[0] in groups]
        return self.moved(waiting, now)

    def close(self, connection: int) -> None:
        """Remove the fetches of a closed connection."""
        for waiting in tuple(self._by_connection.get(connection, ())):
            self._forget(waiting)

    def release_all(self, reason: str = "LEADER_CHANGED") -> list[Effect]:
        """Answer every waiting fetch with the code that tells the client to retry."""
        return self._end_each([w for each in self._waiting.values() for w in each.values()], reason)

    def _end_each(self, waiting: Sequence[Waiting], reason: str) -> list[Effect]:
        """Answer some fetches now and the others in later turns."""
        effects = [
            effect for each in waiting[:SERVED_COUNT_MAX] for effect in self._end(each, reason)
        ]
        if rest := waiting[SERVED_COUNT_MAX:]:
            effects.append(CallSoon(lambda _: self._end_each(rest, reason)))

        return effects

    def stop(self) -> list[Effect]:
        """Stop leading."""
        self._turns.clear()
        effects = self.release_all()
        self._stuck.clear()
        self._to_plan.clear()
        self._begin_turn()

        return effects

    # -- plans -------------------------------------------------------------------------------------

    def _plan_on(self, now: Now) -> list[Effect]:
        """Plan for as many groups and topics as this turn has room for."""
        effects: list[Effect] = []
        while self._to_plan and self._room > 0:
            pair, count = self._to_plan.popitem(last=False)
            effects += self.pump(pair, now, count)
        if self._room < PLANNED_MAX and not self._goes_on:
            self._goes_on = True
            effects.append(CallSoon(self._next_turn))

        return effects

    def _begin_turn(self) -> None:
        self._goes_on, self._room = False, PLANNED_MAX

    def _next_turn(self, now: Now) -> list[Effect]:
        self._begin_turn()

        return self._plan_on(now)

    def _may_plan(self, pair: _Pair) -> bool:
        """Return whether fetches of a group and topic wait and no proposal for them is in progress."""
        context = self._context
        if pair in context.view.fetching or pair not in self._waiting or not context.leading:
            return False
        if ("group", pair[0]) in context.entries.changing:
            # The keys of messages may be different once the change is applied.
            self._stuck[pair] = None
            return False

        return True

    def _put_off(self, pair: _Pair, looked_at: Sequence[Waiting], left: int) -> None:
        """Leave the other fetches of a pair to a later turn, in which they come before those handled now."""
        mine = self._waiting[pair]
        for client_id in [each.header.client_id for each in looked_at if not each.done]:
            mine[client_id] = mine.pop(client_id)
        self._to_plan[pair] = left

    def pump(self, pair: _Pair, now: Now, count: int | None = None) -> list[Effect]:
        """Serve the fetches of one group and topic, or the first *count*, unless a proposal for them is in progress."""
        if not self._may_plan(pair):
            return []
        effects: list[Effect] = []
        plans: list[tuple[Waiting, Plan, LanesFetched]] = []
        this_round: Round | None = None
        empty: Plan | None = None
        all_waiting = list(islice(self._waiting[pair].values(), count))
        self._room -= len(all_waiting) // _PASSED_OVER
        for place, waiting in enumerate(all_waiting):
            # If there is nothing for one fetch, there is nothing for those behind it; only their time may be over.
            if (
                empty is not None
                and not waiting.is_first
                and waiting.deadline_ms > now.monotonic_ms
            ):
                continue
            if place and self._room <= 0:
                self._put_off(pair, all_waiting[:place], len(all_waiting) - place)
                break
            self._room -= 1
            try:
                config, topic, member = self._check(waiting.header)
                repeated = self._repeat(waiting, topic) if waiting.is_first else None
                waiting.is_first = False
                if repeated is not None:
                    effects += repeated
                    continue
                self._check_uncommitted()
                if this_round is None:
                    this_round = self._round(pair, config, topic, now)
                fetch = self._fetch(waiting.header, config, member)
                plan = empty or this_round.plan(fetch)
            except RequestRefused as refused:
                effects += self._answer(waiting, refused.code, remark=refused.remark)
                continue
            self._room -= plan.work if plan is not empty else 0
            parts = plan.records()
            if not (parts or plan.is_own):
                empty = plan
            if parts:
                header = waiting.header
                record = LanesFetched(
                    *pair, header.client_id, header.sequence, _lease(header), parts
                )
                plans.append((waiting, plan, record))
            elif not (plans and this_round.is_spent()):
                # Otherwise the round does not know what is left; the next round begins when these plans are applied.
                effects += self._end_overdue(waiting, plan, now)
        if plans:
            effects.append(self._propose(pair, plans))

        return effects

    def _round(self, pair: _Pair, config: GroupSet, topic: Topic, now: Now) -> Round:
        context = self._context
        self._was_full |= context.state.lanes.total >= LANES_MAX

        return Round(
            context.state,
            context.reader,
            config,
            topic,
            self._turns.setdefault(pair, Turn()),
            lambda queue: self._leases.due(queue, now.wall_ms),
            max(1, self._room),
            offsets_room(context, LANE_OFFSETS_MAX),
        )

    def _propose(self, pair: _Pair, plans: Sequence[tuple[Waiting, Plan, LanesFetched]]) -> Propose:
        # The view belongs to this term: a lost plan of a former term must not change the next term's view.
        view = self._context.view
        view.fetching.add(pair)
        size = sum(len(message) for _, plan, _ in plans for message in plan.messages.values())
        view.fetching_bytes += size
        records: list[Record] = [record for _, _, record in plans]
        touched = {part.queue_id for _, _, record in plans for part in record.queues}
        before = self._stands(pair, touched)

        def ended() -> None:
            view.fetching.discard(pair)
            view.fetching_bytes -= size

        def applied(outcomes: Sequence[Outcome], now: Now) -> list[Effect]:
            ended()
            effects: list[Effect] = []
            for (waiting, plan, _), outcome in zip(plans, outcomes, strict=True):
                if isinstance(outcome, LanesGranted):
                    self._context.counters["lanes_handed_out"] += len(outcome.granted)
                    self._context.counters["lane_messages_expired"] += plan.expired
                    if outcome.granted:
                        effects += self._give(waiting, plan, outcome)
                elif isinstance(outcome, Refused) and outcome.reason != MOVED:
                    code = ResponseCode.PULL_RETRY_IMMEDIATELY
                    effects += self._answer(waiting, code, remark=outcome.reason)
            is_void = not any(isinstance(each, LanesGranted) and each.granted for each in outcomes)
            if is_void and self._stands(pair, touched) == before:
                # The same plan would be made again, endlessly.
                self._stuck[pair] = None
                for waiting, plan, _ in plans:
                    effects += self._end_overdue(waiting, plan, now)
                return effects
            # For fetches that got nothing yet, and for those that came meanwhile.
            return [*effects, *self.moved((pair,), now)]

        def lost(refusal: Refusal | None) -> list[Effect]:
            ended()
            # Fetches that came meanwhile are served with the next tick, if this replica still leads.
            self._stuck[pair] = None
            effects: list[Effect] = []
            for waiting, _, _ in plans:
                if refusal is None:
                    effects += self._end(waiting, "LEADER_CHANGED")
                else:
                    effects += self._answer(waiting, refusal.code, remark=refusal.remark)
            return effects

        return Propose(records, applied, lost)

    def _stands(self, pair: _Pair, queue_ids: Iterable[int]) -> list[tuple[int, int] | None]:
        """Return the positions of queues that a valid fetch changes even if it hands out nothing."""
        queues = self._context.state.lanes.queues_of(*pair)
        found = [queues.get(queue_id) for queue_id in sorted(queue_ids)]

        return [None if queue is None else (queue.scanned, queue.owed) for queue in found]

    # -- answers -----------------------------------------------------------------------------------

    def _repeat(self, waiting: Waiting, topic: Topic) -> list[Effect] | None:
        """Answer a fetch that already has attempts; return None if it has none."""
        header = waiting.header
        mine = [
            (queue, lane)
            for queue, lane in self._context.state.lanes.in_hand_of(
                header.client_id, header.consumer_group, topic.name
            )
            if lane.sequence == header.sequence and lane.taken
        ]
        if not mine:
            return None
        self._context.counters["lanes_repeated"] += len(mine)
        lanes = [_shown(queue, lane) for queue, lane in mine]
        messages = [
            message
            for queue, lane in mine
            for message in messages_at(
                self._context.reader, topic.queue(queue.place[2]), lane.head[: lane.taken]
            )
        ]
        self._room -= len(mine) + sum(map(len, filter(None, messages))) // BYTES_READ

        return self._answer_lanes(waiting, lanes, messages, mine[0][1].lease_ms)

    def _give(self, waiting: Waiting, plan: Plan, outcome: LanesGranted) -> list[Effect]:
        lanes = [_lane(each) for each in outcome.granted]
        messages = [
            plan.messages.get((each.queue_id, offset))
            for each in outcome.granted
            for offset in each.offsets
        ]

        return self._answer_lanes(waiting, lanes, messages, outcome.lease_ms, plan.limited)

    def _answer_lanes(
        self,
        waiting: Waiting,
        lanes: Sequence[wire.Lane],
        messages: Sequence[Message | None],
        lease_ms: int,
        limited: str = "",
    ) -> list[Effect]:
        records = [message for message in messages if message is not None]
        body = wire.LanesFetched(tuple(lanes), lease_ms, limited).encode(records)
        if not waiting.done:
            topic, group = waiting.header.topic, waiting.header.consumer_group
            self._context.handed_out(waiting.caller, topic, group, len(records), len(body))

        return self._answer(waiting, ResponseCode.SUCCESS, body=body)

    def _end_overdue(self, waiting: Waiting, plan: Plan, now: Now) -> list[Effect]:
        """Answer a fetch that gets nothing, if its time is over."""
        if waiting.deadline_ms > now.monotonic_ms:
            return []

        return self._answer(waiting, ResponseCode.PULL_NOT_FOUND, remark=plan.limited)

    def _end(self, waiting: Waiting, reason: str) -> list[Effect]:
        return self._answer(waiting, ResponseCode.PULL_RETRY_IMMEDIATELY, remark=reason)

    def _answer(
        self, waiting: Waiting, code: int, *, body: bytes = b"", remark: str = ""
    ) -> list[Effect]:
        if waiting.done:
            return []
        self._forget(waiting)

        return answer(waiting.request, waiting.caller, code, body=body, remark=remark or None)

    def _forget(self, waiting: Waiting) -> None:
        waiting.done = True
        header = waiting.header
        pair = _pair(header)
        mine = self._waiting.get(pair, {})
        if mine.get(header.client_id) is waiting:
            del mine[header.client_id]
            self.waiting_count -= 1
            if not mine:
                del self._waiting[pair], self._by_topic[header.topic][pair]
                if not self._by_topic[header.topic]:
                    del self._by_topic[header.topic]
        self._deadlines.cancel(waiting)
        connection = waiting.caller.connection
        del self._by_connection[connection][waiting]
        if not self._by_connection[connection]:
            del self._by_connection[connection]

    # -- checks ------------------------------------------------------------------------------------

    def _check(self, header: FetchLanesHeader) -> tuple[GroupSet, Topic, MemberSeen]:
        """Return the group, topic and member of a fetch.

        Raises:
            RequestRefused: the group does not consume by key, or the member may not fetch.
        """
        context = self._context
        group = header.consumer_group
        config = by_key(context, group)
        check_broker(context)
        topic = readable_topic(context, header.topic, config)
        if not 1 <= header.max_lanes <= wire.LANES_MAX:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"maxLanes {header.max_lanes} is not between 1 and {wire.LANES_MAX}",
            )
        member = context.state.members.get(group, header.client_id)
        if member is None:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"{header.client_id} is not a member of group[{group}]; send a heartbeat first",
            )
        if member.message_model == BROADCASTING:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{group}] consumes by key; a broadcasting member has no lanes",
            )

        return config, topic, member

    def _check_uncommitted(self) -> None:
        """Refuse a fetch if too much data waits for the log, because each plan keeps its messages until it is committed.

        Raises:
            RequestRefused: too much is uncommitted (2).
        """
        check_backlog(self._context)
        if self._context.view.fetching_bytes > self._context.settings.raft.uncommitted_size_max:
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, BUSY)

    def _fetch(self, header: FetchLanesHeader, config: GroupSet, member: MemberSeen) -> Fetch:
        size_max = header.max_bytes or BULK_SIZE_MAX

        return Fetch(
            header.client_id,
            header.max_lanes,
            max(1, min(header.max_per_lane, wire.LANE_MESSAGES_MAX)),
            max(1, min(size_max, BULK_SIZE_MAX)),
            registered_filter(self._context, config.name, header.topic, header.sub_version, config),
            member.consume_from_where,
        )


def _pair(header: FetchLanesHeader) -> _Pair:
    return header.consumer_group, header.topic


def by_key(context: Context, group: str) -> GroupSet:
    """Return the configuration of a group that consumes by key.

    Raises:
        RequestRefused: the group does not exist (26), or it consumes by queue locks (20512).
    """
    config = find_group(context, group)
    if not config.by_key:
        raise RequestRefused(ResponseCode.ORDERLYMQ_NOT_BY_KEY, NOT_BY_KEY.format(group=group))

    return config


def _lease(header: FetchLanesHeader) -> int:
    wanted = DEFAULT_LEASE_MS if header.lease_millis is None else header.lease_millis

    return max(LEASE_MS_MIN, min(wanted, LEASE_MS_MAX))


def _lane(granted: Granted) -> wire.Lane:
    return wire.Lane(
        granted.queue_id,
        granted.lane,
        granted.attempt,
        granted.key[: wire.KEY_LENGTH_SHOWN],
        granted.offsets,
        granted.tries,
        granted.behind,
        granted.since_ms,
    )


def _shown(queue: LaneQueue, lane: Lane) -> wire.Lane:
    return wire.Lane(
        queue.place[2],
        lane.number,
        lane.attempt,
        lane.key[: wire.KEY_LENGTH_SHOWN],
        lane.head[: lane.taken],
        lane.tries,
        lane.owed - lane.taken,
        lane.since_ms,
    )
