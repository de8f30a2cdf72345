"""
An operator that expands the ordered topic: the real planner, with reads and requests on the simulated network.

Operators die between any two steps. One that another has succeeded continues for some time: its token is old, and its
requests are not carried out. The laws are in ``invariants/expansion.py``: no send passes a fence, a switch finds
everything consumed, and the number of queues never falls.
"""

from functools import partial
from typing import TYPE_CHECKING, Final

from orderlymq_operator.brokers.admin import expansion_request
from orderlymq_operator.brokers.answers import expansions
from orderlymq_operator.plan.actions import (
    ExpansionAction,
    FenceTopic,
    PutOrderConfig,
    TopicConfig,
)
from orderlymq_operator.plan.expansion import ExpansionRequest, ExpansionState, plan_expansion
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_protocol.header.extensions import EXT_TOKEN
from orderlymq_runtime.remoting.client import RemotingError
from tests.sim.clients.accounts import OPERATOR
from tests.sim.clients.client import Client
from tests.sim.timeline import MS, SECOND

if TYPE_CHECKING:
    from tests.sim.world import World

GROUP: Final = "broker-a"
LOOK_US: Final = 250 * MS
TIMEOUT_US: Final = SECOND
FOLLOWED_MAX_US: Final = 3 * SECOND
LIMIT_MS: Final = 4_000
SETTLE_MS: Final = 3_000


def _config(queues: int) -> TopicConfig:
    return TopicConfig(queues, 6, order=True)


class Grower(Client):
    """One operator process; a later one has a greater *token*."""

    def __init__(self, world: "World", token: int) -> None:
        super().__init__(world, f"operator-{token}", f"10.0.7.{token}")
        self.account = OPERATOR
        self._token = token
        self._request = ExpansionRequest(
            world.topic, _config(world.plan.queues), LIMIT_MS, SETTLE_MS
        )

    def start(self, queues: int) -> None:
        """Begin to want *queues* queues."""
        self.begin()
        self._request = ExpansionRequest(self.world.topic, _config(queues), LIMIT_MS, SETTLE_MS)
        self._look()

    def crash(self) -> None:
        """End between two steps."""
        self.forget_calls()
        self.end()

    # -- looking

    def _look(self) -> None:
        # The random pause keeps two operators out of step; in step one would always be first, or always second.
        self.after(self.timeline.random.randrange(LOOK_US // 2, 2 * LOOK_US), "look", self._look)
        ext = {"topics": self.world.topic}
        self.call(request(RequestCode.ORDERLYMQ_QUEUE_EXPANSION, ext), TIMEOUT_US, self._seen)

    def _seen(self, answer: RemotingCommand | RemotingError) -> None:
        if isinstance(answer, RemotingError) or answer.code != ResponseCode.SUCCESS:
            return
        greatest, found = expansions(answer.body)
        if greatest > self._token:
            self.world.coverage["operator saw its successor"] += 1
        servers = self.world.name_servers
        growing = ExpansionState(
            {GROUP: found[self.world.topic]},
            tuple(server.queue_list(self.world.topic) for server in servers),
            tuple(server.route_counts(self.world.topic) for server in servers),
        )
        for action in plan_expansion(self._request, growing).actions:
            self._do(action)

    # -- doing

    def _do(self, action: ExpansionAction) -> None:
        world = self.world
        if isinstance(action, PutOrderConfig):
            for server in world.name_servers:
                server.put_queue_list(action.topic, action.value)
            return
        if isinstance(action, FenceTopic):
            world.coverage["growth begun"] += 1
        command = expansion_request(action)
        command.ext = {**command.ext, EXT_TOKEN: str(self._token)}
        self.call(command, TIMEOUT_US, partial(self._done, command.ext["action"]))

    def _done(self, action: str, answer: RemotingCommand | RemotingError) -> None:
        good = isinstance(answer, RemotingCommand) and answer.code == ResponseCode.SUCCESS
        world = self.world
        world.coverage[f"growth: {action} {'done' if good else 'not done'}"] += 1
        followed = action == "fence" and good and "operator" in world.plan.troubles
        if followed and not world.calm and self is world.growers[-1]:
            # An expansion takes a second or two: a fault at a random time would seldom hit it.
            self.after(FOLLOWED_MAX_US, "operator ends", self.crash)
            world.coverage["operator followed in a growth"] += 1
            world.next_operator()

    @property
    def token(self) -> int:
        """Return the fencing token of this process."""
        return self._token
