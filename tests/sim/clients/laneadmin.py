"""
An administrator of the group by key.

It releases failed lanes, resets offsets, deletes the group and makes it again, and changes how it consumes. After the
faults it only makes sure that the group consumes by key, and releases held lanes. The laws are in
``invariants/lanes.py``.
"""

import json
from functools import partial
from typing import TYPE_CHECKING, Final

from orderlymq_protocol.body.lanes import BY_KEY, BY_QUEUE, LaneShown, LaneTable
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_protocol.header.catalogue import DeleteSubscriptionGroupHeader, ResetOffsetHeader
from orderlymq_runtime.remoting.client import RemotingError
from tests.sim.clients.accounts import OPERATOR
from tests.sim.clients.client import Client
from tests.sim.invariants.lanes import GROUP, TRIES_MAX
from tests.sim.timeline import MS, SECOND

if TYPE_CHECKING:
    from tests.sim.world import World

TIMEOUT_US: Final = SECOND
# Longer than the leases of members: a member that pauses beyond them has nothing in hand at the end.
REST_US: Final = 3 * SECOND


class LaneAdministrator(Client):
    """Acts repeatedly until the faults end."""

    def __init__(self, world: "World") -> None:
        super().__init__(world, "lane-administrator", "10.0.10.1")
        self.account = OPERATOR
        self._is_set = False

    def start(self) -> None:
        """Begin."""
        self.begin()
        self._later()

    def _later(self) -> None:
        self.after(self.timeline.random.randrange(100 * MS, SECOND), "next", self._act)

    def _act(self) -> None:
        world, random = self.world, self.timeline.random
        self._later()
        if world.calm:
            if not self._is_set:
                self._set(BY_KEY)
            self._release()
        elif not world.plan.lane_changes or random.random() < 0.5:
            self._release()
        else:
            random.choice((self._reset, self._delete, self._change))()

    def _ask(self, command: RemotingCommand) -> None:
        self.call(command, TIMEOUT_US, lambda _: None)

    # -- lanes

    def _release(self) -> None:
        command = request(RequestCode.ORDERLYMQ_LANES, {"consumerGroup": GROUP})
        self.call(command, TIMEOUT_US, self._listed)

    def _listed(self, answer: RemotingCommand | RemotingError) -> None:
        if isinstance(answer, RemotingError) or answer.code != ResponseCode.SUCCESS:
            return
        table = LaneTable.from_json(answer.body)
        lanes = table.lanes
        # A change whose answer was lost may arrive after the last one that was acknowledged.
        self._is_set &= table.concurrency == BY_KEY
        held = [lane for lane in lanes if lane.state == "held"]
        parked = [lane for lane in lanes if lane.state == "parked"]
        random = self.timeline.random
        if self.world.calm:
            self._release_strange(parked)
            for lane in held:
                # A message that kills its consumers would be held again.
                is_deadly = self.world.plan.lane_deadly and random.random() < 0.5
                self._free(lane, "skip" if is_deadly else "retry")
        elif held or (parked and random.random() < 0.3):
            self._free(random.choice(held or parked), random.choice(("retry", "skip")))

    def _release_strange(self, parked: list[LaneShown]) -> None:
        """Set the group again if it has tried a message too often.

        A deletion whose answer was lost may arrive after the last change, and a heartbeat makes a group without our
        settings, whose pauses are longer than the run.
        """
        strange = [
            lane for lane in parked if self.world.plan.lane_letters and lane.tries > TRIES_MAX
        ]
        if strange:
            self._set(BY_KEY)
        for lane in strange:
            self._free(lane, "retry")

    def _free(self, lane: LaneShown, action: str) -> None:
        ext = {"consumerGroup": GROUP, "topic": lane.topic, "key": lane.key, "action": action}
        self._ask(request(RequestCode.ORDERLYMQ_RELEASE_KEY, ext))

    # -- the group

    def _reset(self) -> None:
        world, random = self.world, self.timeline.random
        queue = random.randrange(world.laws.growth.queues)
        end = world.laws.model.ends[world.topic_id, queue]
        offset = random.choice((0, end, random.randrange(end + 1)))
        header = ResetOffsetHeader(world.topic, GROUP, 0, True, queue, offset)
        self._ask(request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header.to_ext()))

    def _delete(self) -> None:
        """Delete the group, usually after its members were stopped; otherwise they have lanes in hand and it stays."""
        random = self.timeline.random
        if random.random() < 0.3:
            self._delete_now()
            return
        for member in self.world.lane_members:
            member.rest(REST_US)
        self.after(random.randrange(REST_US), "delete", self._delete_now)

    def _delete_now(self) -> None:
        header = DeleteSubscriptionGroupHeader(
            GROUP, clean_offset=self.timeline.random.random() < 0.5
        )
        command = request(RequestCode.DELETE_SUBSCRIPTIONGROUP, header.to_ext())
        self.call(command, TIMEOUT_US, self._was_deleted)
        self.after(self.timeline.random.randrange(300 * MS), "again", lambda: self._set(BY_KEY))

    def _was_deleted(self, answer: RemotingCommand | RemotingError) -> None:
        if (
            isinstance(answer, RemotingCommand)
            and answer.code == ResponseCode.ORDERLYMQ_GROUP_IN_USE
        ):
            self.world.coverage["lane group in use"] += 1

    def _change(self) -> None:
        """Make the group consume by queue for some time."""
        self._set(BY_QUEUE)
        self.after(self.timeline.random.randrange(SECOND), "by key", lambda: self._set(BY_KEY))

    def _set(self, concurrency: str) -> None:
        letters = self.world.plan.lane_letters
        config = {
            "groupName": GROUP,
            "concurrency": concurrency,
            "onDeadLetter": letters or "Continue",
            "retryMaxTimes": TRIES_MAX if letters else -1,
        }
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        command = request(code, None, json.dumps(config).encode())
        self.call(command, TIMEOUT_US, partial(self._was_set, concurrency))

    def _was_set(self, concurrency: str, answer: RemotingCommand | RemotingError) -> None:
        """Note whether the last change that was carried out is the final one."""
        if isinstance(answer, RemotingCommand) and answer.code == ResponseCode.SUCCESS:
            self._is_set = self.world.calm and concurrency == BY_KEY
