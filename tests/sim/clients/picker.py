"""
A member by key of topics that other clients delete and make again.

It keeps some attempts in hand while their topic is deleted, and reports them afterwards, when another topic of that
name exists. The laws are in ``invariants/picks.py``.
"""

from functools import partial
from typing import TYPE_CHECKING, Final

from orderlymq_protocol.body.catalogue import ConsumerData, HeartbeatData, SubscriptionData
from orderlymq_protocol.body.lanes import BY_KEY, LaneReport, LaneReports, LanesFetched
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_protocol.header.lanes import CompleteLanesHeader, FetchLanesHeader
from orderlymq_runtime.remoting.client import RemotingError
from tests.sim.clients.accounts import OPERATOR
from tests.sim.clients.client import Client
from tests.sim.invariants.lives import RECYCLED
from tests.sim.invariants.picks import GROUP
from tests.sim.timeline import MS, SECOND

if TYPE_CHECKING:
    from tests.sim.world import World

LEASE_MS: Final = 4_000
TIMEOUT_US: Final = SECOND
PARKED_MS: Final = 500


class Picker(Client):
    """Fetches and reports until the faults end."""

    def __init__(self, world: "World") -> None:
        super().__init__(world, "picker", "10.0.11.1")
        self.account = OPERATOR
        # The topic, the report, the earliest time to send it, and the topic's number at the fetch.
        self._says: list[tuple[str, LaneReport, int, int | None]] = []
        self._sequence = 0

    def start(self) -> None:
        """Begin."""
        self.begin()
        self._beat()
        self._act()

    def _beat(self) -> None:
        subscriptions = tuple(SubscriptionData.of_tags(topic, "*", 1) for topic in RECYCLED)
        data = ConsumerData(
            GROUP,
            consume_from_where="CONSUME_FROM_FIRST_OFFSET",
            concurrency=BY_KEY,
            subscription_data_set=subscriptions,
        )
        body = HeartbeatData(self.name, (), (data,)).to_json()
        self.call(request(RequestCode.HEART_BEAT, None, body), TIMEOUT_US, lambda _: None)
        self.after(SECOND, "heartbeat", self._beat)

    def _act(self) -> None:
        if self.world.calm:
            return
        self.after(self.timeline.random.randrange(20 * MS, 200 * MS), "next", self._act)
        due = next((each for each in self._says if each[2] <= self.timeline.now), None)
        if due is None:
            self._fetch(self.timeline.random.choice(RECYCLED))
        else:
            self._says.remove(due)
            self._say(*due)

    def _fetch(self, topic: str) -> None:
        self._sequence += 1
        lanes, each = self.timeline.random.choice((1, 3)), self.timeline.random.choice((1, 3))
        header = FetchLanesHeader(
            GROUP, topic, self.name, self._sequence, lanes, each, lease_millis=LEASE_MS
        )
        command = request(RequestCode.ORDERLYMQ_FETCH_LANES, header.to_ext())
        self.call(command, TIMEOUT_US, partial(self._fetched, topic))

    def _fetched(self, topic: str, answer: RemotingCommand | RemotingError) -> None:
        if isinstance(answer, RemotingError) or answer.code != ResponseCode.SUCCESS:
            return
        random, number = self.timeline.random, self.world.laws.lives.number(topic)
        for lane in LanesFetched.decode(answer.body)[0].lanes:
            place = (lane.queue_id, lane.lane, lane.attempt)
            report = LaneReport(*place, "done", lane.offsets[-1])
            if random.random() < 0.3:
                report = LaneReport(*place, "retry", delay_millis=PARKED_MS, tries_max=-1)
            waits_us = random.choice((0, random.randrange(3 * SECOND)))
            self._says.append((topic, report, self.timeline.now + waits_us, number))

    def _say(self, topic: str, report: LaneReport, _: int, number: int | None) -> None:
        if number != self.world.laws.lives.number(topic):
            self.world.coverage["lane of a former topic reported"] += 1
        header = CompleteLanesHeader(GROUP, topic, self.name)
        command = request(
            RequestCode.ORDERLYMQ_COMPLETE_LANES,
            header.to_ext(),
            LaneReports((report,)).to_json(),
        )
        self.call(command, TIMEOUT_US, lambda _: None)
