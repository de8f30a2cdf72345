"""
A reader that asks every replica, in turn, for committed offsets of groups and the lengths of queues.

An answer must not be older than its question, whichever replica gives it: a deposed leader, a paused one, a follower.
No answer and a refusal are both allowed.
"""

from functools import partial
from typing import TYPE_CHECKING, Final

from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_protocol.header.catalogue import QueryConsumerOffsetHeader, QueueHeader
from orderlymq_runtime.remoting.client import RemotingError
from tests.sim.clients.accounts import OPERATOR
from tests.sim.clients.client import Client
from tests.sim.invariants.lives import RECYCLED
from tests.sim.invariants.log import Key
from tests.sim.timeline import MS, SECOND

if TYPE_CHECKING:
    from tests.sim.broker.replica import Replica
    from tests.sim.world import World

EVERY_US: Final = 150 * MS


class Auditor(Client):
    """Repeatedly asks one replica."""

    def __init__(self, world: "World", replica: "Replica") -> None:
        super().__init__(world, f"auditor-{replica.id}", "10.0.3.2")
        self.account = OPERATOR
        self.replica = replica

    def start(self) -> None:
        """Begin to ask."""
        self.begin()
        self._ask()

    def _choose(self) -> "Replica | None":
        address = self.world.address
        listens = address is None or address.holder is self.replica
        return self.replica if listens else None

    def _ask(self) -> None:
        self.after(EVERY_US, "audit", self._ask)
        laws, random = self.world.laws, self.timeline.random
        keys = sorted(key for key in laws.model.offsets if key[1] not in RECYCLED)
        if not keys:
            return
        key = random.choice(keys)
        header = QueryConsumerOffsetHeader(*key)
        command = request(RequestCode.QUERY_CONSUMER_OFFSET, header.to_ext())
        self.call(command, SECOND, partial(self._answered, key, laws.observed[key]))
        self.ask_end(random.randrange(laws.growth.queues))

    def ask_end(self, queue: int) -> None:
        """Ask for the end of a queue of the topic."""
        header = QueueHeader(self.world.topic, queue)
        command = request(RequestCode.GET_MAX_OFFSET, header.to_ext())
        at_least = self.world.laws.observed_ends[queue]
        self.call(command, SECOND, partial(self._end_answered, queue, at_least))

    def _answered(self, key: Key, at_least: int, answer: RemotingCommand | RemotingError) -> None:
        if isinstance(answer, RemotingCommand) and answer.code == 0:
            self.world.coverage["offset audited"] += 1
            self.world.laws.offset_answered(key, int(answer.ext["offset"]), at_least)

    def _end_answered(
        self, queue: int, at_least: int, answer: RemotingCommand | RemotingError
    ) -> None:
        if isinstance(answer, RemotingCommand) and answer.code == 0:
            self.world.coverage["end audited"] += 1
            self.world.laws.end_answered(queue, int(answer.ext["offset"]), at_least)
