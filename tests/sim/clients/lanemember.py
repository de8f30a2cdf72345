"""
A member of a group that consumes by key: it fetches lanes, works on them at the same time, and reports the results.

It repeats a fetch whose answer was lost under the first one's number, and repeats a completion until it is
answered. It renews its leases, gives back lanes, fails, pauses beyond its leases, dies (sometimes because of a
message), and returns under another name. It counts each lease from before its request, and a listener begins
nothing after its end. A lane from a repeated fetch keeps its lease, which may have begun long before, so a listener
begins it after its first renewal.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final
from zlib import crc32

from orderlymq_protocol.body.catalogue import ConsumerData, HeartbeatData, SubscriptionData
from orderlymq_protocol.body.clients import CONSUME_FROM_LAST_OFFSET as LAST
from orderlymq_protocol.body.lanes import (
    BY_KEY,
    Lane,
    LaneReport,
    LaneReports,
    LanesFetched,
    LaneVerdicts,
)
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_protocol.header.lanes import CompleteLanesHeader, FetchLanesHeader
from orderlymq_protocol.message.properties import SHARDING_KEY, decode_properties
from orderlymq_protocol.message.record import StoredMessage, iter_records
from orderlymq_runtime.remoting.client import RemotingError
from tests.sim.clients.accounts import OPERATOR
from tests.sim.clients.client import Client
from tests.sim.invariants.lanes import GROUP
from tests.sim.timeline import MS, SECOND

if TYPE_CHECKING:
    from tests.sim.world import World

LEASE_MS: Final = 2_000
TIMEOUT_US: Final = 1_500 * MS
SUSPEND_MS: Final = 800
HEARTBEAT_US: Final = SECOND
FIRST: Final = "CONSUME_FROM_FIRST_OFFSET"
WORKERS: Final = 6
# After the faults one key fails until all others are done, each time for so long.
FAILING: Final = "k1-0"
FAILING_MS: Final = 300
# One message in so many kills its consumers, if the plan has such messages.
DEADLY: Final = 150

_Name = tuple[int, int]  # queue and attempt


@dataclass(slots=True)
class _Held:
    """An attempt that the member works on."""

    lane: Lane
    messages: list[StoredMessage]
    until_us: int
    done: int = -1
    is_unsure: bool = False
    fate: LaneReport | None = field(default=None)

    @property
    def name(self) -> _Name:
        return self.lane.queue_id, self.lane.attempt


class LaneMember(Client):
    """A member of the group by key."""

    def __init__(self, world: "World", number: int) -> None:
        super().__init__(world, f"shipper-{number}", f"10.0.9.{number}")
        self.account = OPERATOR
        self._births = 0
        self._rests_until = 0

    # -- life

    def start(self) -> None:
        """Start a new process of this member."""
        self.begin()
        self._births += 1
        self.client_id = f"{self.name}#{self._births}"
        self._held: dict[_Name, _Held] = {}
        self._sequence = 0
        self._beat()
        self._fetch()
        self.after(self.timeline.random.randrange(200 * MS, 400 * MS), "report", self._report)
        if not self.world.calm:
            self.after(self.timeline.random.randrange(SECOND, 6 * SECOND), "trouble", self._trouble)

    def _trouble(self) -> None:
        """Die, or pause for longer than a lease, unless the faults are over."""
        if self.world.calm:
            return
        random = self.timeline.random
        self.after(random.randrange(SECOND, 6 * SECOND), "trouble", self._trouble)
        if random.random() < 0.5:
            self.world.coverage["lane member paused"] += 1
            self.paused_until = self.timeline.now + random.randrange(500 * MS, 4 * SECOND)
            return
        self._crash()

    def _crash(self) -> None:
        self.world.coverage["lane member crashed"] += 1
        self.world.laws.lanes.gone(self.client_id)
        self.forget_calls()
        self.end()
        random = self.timeline.random
        if random.random() < 0.5:
            self._report_death(self.client_id)
        self.timeline.after(random.randrange(50 * MS, SECOND), "lane member starts", self.start)

    def _report_death(self, client_id: str) -> None:
        """Have a tool prove the death."""
        tool = self.world.tool
        ext = {"clientId": client_id, "proof": "the process is gone"}
        command = request(RequestCode.ORDERLYMQ_CLIENT_DEAD, ext)
        tool.after(20 * MS, "death reported", lambda: tool.call(command, SECOND, lambda _: None))

    def rest(self, span_us: int) -> None:
        """Take nothing new for some time, like a member that is about to be stopped."""
        self._rests_until = self.timeline.now + span_us

    def heal(self) -> None:
        """Continue immediately: the faults are over."""
        self.paused_until = min(self.paused_until, self.timeline.now)

    def _beat(self) -> None:
        subscription = SubscriptionData.of_tags(self.world.topic, "*", 1)
        data = ConsumerData(
            GROUP,
            consume_from_where=LAST if self.world.plan.lane_last else FIRST,
            concurrency=BY_KEY,
            subscription_data_set=(subscription,),
        )
        body = HeartbeatData(self.client_id, (), (data,)).to_json()
        self.call(request(RequestCode.HEART_BEAT, None, body), TIMEOUT_US, lambda _: None)
        self.after(HEARTBEAT_US, "heartbeat", self._beat)

    # -- fetches

    def _fetch(self, *, again: bool = False) -> None:
        room = WORKERS - len(self._held)
        if room <= 0 or self.timeline.now < self._rests_until:
            self.after(20 * MS, "room", self._fetch)
            return
        self._sequence += not again
        random = self.timeline.random
        header = FetchLanesHeader(
            GROUP,
            self.world.topic,
            self.client_id,
            self._sequence,
            # One of every four lanes is looked for among new messages first: the only one if one lane is requested.
            random.choice((1, random.randrange(1, room + 1))),
            random.choice((1, 3)),
            lease_millis=LEASE_MS,
            suspend_timeout_millis=SUSPEND_MS,
        )
        command = request(RequestCode.ORDERLYMQ_FETCH_LANES, header.to_ext())
        self.call(command, TIMEOUT_US, partial(self._fetched, self.clock_us, again))

    def _fetched(
        self,
        asked_us: int,
        is_repeat: bool,
        answer: RemotingCommand | RemotingError,
    ) -> None:
        if isinstance(answer, RemotingError):
            self.world.coverage["lane fetch repeated"] += 1
            self.after(10 * MS, "fetch", partial(self._fetch, again=True))
            return
        if answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
            self.after(10 * MS, "fetch", partial(self._fetch, again=True))
            return
        if answer.code != ResponseCode.SUCCESS:
            wait_us = 10 * MS if answer.code == ResponseCode.PULL_NOT_FOUND else 100 * MS
            self.after(wait_us, "fetch", self._fetch)
            return
        fetched, records = LanesFetched.decode(answer.body)
        messages = {(each.queue_id, each.queue_offset): each for each in iter_records(records)}
        until_us = asked_us + fetched.lease_millis * MS
        for lane in fetched.lanes:
            if (lane.queue_id, lane.attempt) in self._held:
                continue
            mine = [messages[lane.queue_id, offset] for offset in lane.offsets]
            held = _Held(lane, mine, until_us, is_unsure=is_repeat)
            self._held[held.name] = held
            if is_repeat:
                self.world.coverage["lane renewed before work"] += 1
            else:
                self._next(held)
        # A message may have killed this member.
        if self.alive:
            self._fetch()

    # -- listeners

    def _next(self, held: _Held) -> None:
        """Begin the next message of an attempt, or decide what to report about it."""
        if not self.alive or self._held.get(held.name) is not held or held.fate is not None:
            return
        left = [each for each in held.messages if each.queue_offset > held.done]
        if not left:
            self._say(held, "done")
            return
        if self.clock_us >= held.until_us:
            self.world.coverage["lane lease over"] += 1
            del self._held[held.name]
            return
        random = self.timeline.random
        if random.random() < 0.05 and not self.world.calm:
            self._say(held, "release")
            return
        message = left[0]
        key = decode_properties(message.properties).get(SHARDING_KEY, "")
        true_us = self.true_time(held.until_us)
        laws = self.world.laws
        laws.pulled(self.world.topic, message.queue_id, message.queue_offset, message.body.decode())
        lane, attempt = (message.queue_id, key), held.lane.attempt
        laws.lanes.begins(self.client_id, lane, attempt, message.queue_offset, true_us)
        if self.world.plan.lane_deadly and crc32(message.body) % DEADLY == 0:
            self.world.coverage["lane member killed by a message"] += 1
            self._crash()
            return
        spent_us = random.randrange(1 + self.world.plan.listener_max_us)
        self.after(spent_us, "listener", partial(self._worked, held, message, key))

    def _worked(self, held: _Held, message: StoredMessage, key: str) -> None:
        random, lanes = self.timeline.random, self.world.laws.lanes
        fails = random.random() < 0.1
        if self.world.calm:
            # Under StopQueue this key would block its queue, and the others would never be done.
            is_alone = self.world.plan.lane_letters != "StopQueue"
            fails = is_alone and key == FAILING and not lanes.is_rest(FAILING)
        lane, attempt = (message.queue_id, key), held.lane.attempt
        lanes.ends(self.client_id, lane, attempt, message.queue_offset, good=not fails)
        if self._held.get(held.name) is not held:
            return
        if fails:
            self.world.coverage["lane parked"] += 1
            self._say(held, "retry", delay_millis=FAILING_MS)
            return
        held.done = message.queue_offset
        self._next(held)

    def _say(self, held: _Held, result: str, delay_millis: int = -1) -> None:
        lane = held.lane
        tries_max = None if self.world.plan.lane_letters else -1
        place = (lane.queue_id, lane.lane, lane.attempt)
        held.fate = LaneReport(*place, result, held.done, delay_millis, tries_max)

    # -- reports

    def _report(self) -> None:
        """Report attempts that have ended, and renew the others."""
        reports = []
        for held in self._held.values():
            lane = held.lane
            renewal = LaneReport(lane.queue_id, lane.lane, lane.attempt, "renew", held.done)
            reports.append(held.fate or renewal)
        if not reports:
            self.after(20 * MS, "report", self._report)
            return
        header = CompleteLanesHeader(GROUP, self.world.topic, self.client_id)
        body = LaneReports(tuple(reports)).to_json()
        command = request(RequestCode.ORDERLYMQ_COMPLETE_LANES, header.to_ext(), body)
        self.call(command, TIMEOUT_US, partial(self._reported, self.clock_us, reports))

    def _reported(
        self,
        asked_us: int,
        reports: list[LaneReport],
        answer: RemotingCommand | RemotingError,
    ) -> None:
        self.after(self.timeline.random.randrange(10 * MS, 200 * MS), "report", self._report)
        if isinstance(answer, RemotingError) or answer.code != ResponseCode.SUCCESS:
            self.world.coverage["lane report repeated"] += 1
            return
        verdicts = LaneVerdicts.from_json(answer.body).of(reports)
        for report, verdict in zip(reports, verdicts, strict=True):
            held = self._held.get((report.queue_id, report.attempt))
            if held is None:
                continue
            if verdict.verdict == "stale":
                self.world.coverage["lane report stale"] += 1
            if report.result == "renew" and verdict.verdict == "renewed":
                self._renewed(held, asked_us + LEASE_MS * MS)
            elif report.result != "renew" or verdict.verdict == "stale":
                del self._held[held.name]

    def _renewed(self, held: _Held, until_us: int) -> None:
        """Count the lease from the renewal, and begin the work that waited for it."""
        if not held.is_unsure:
            held.until_us = max(held.until_us, until_us)
            return
        held.is_unsure, held.until_us = False, until_us
        self._next(held)
