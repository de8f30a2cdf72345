"""
The registration of a replica's broker group at the name servers, on events; ``server/registration.py`` uses tasks.

The request is the real one; its repetition, the retries and the connection that keeps it alive are here.
"""

from functools import partial
from typing import TYPE_CHECKING, Final

from orderlymq_broker.server.registration import body_pieces, registration
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.remoting.client import RemotingError
from tests.sim.clients.client import Errand, ServerProcess
from tests.sim.timeline import MS, SECOND

if TYPE_CHECKING:
    from tests.sim.broker.nameservers import NameServer
    from tests.sim.broker.replica import Replica
    from tests.sim.world import World

PERIOD_US: Final = 2 * SECOND
RETRY_US: Final = 200 * MS
TIMEOUT_US: Final = SECOND


class Registrar:
    """Keeps one registration at each name server while its replica lives."""

    def __init__(self, world: "World", replica: "Replica") -> None:
        self._errands = [_Errand(world, replica, each) for each in world.name_servers]

    def start(self) -> None:
        """Begin to register."""
        for errand in self._errands:
            errand.start()

    def announce(self) -> None:
        """Register again immediately: the topics or the leader have changed."""
        for errand in self._errands:
            errand.register()

    def stop(self, *, silent: bool) -> None:
        """End with the replica; if its machine dies too, connections are not reset."""
        for errand in self._errands:
            errand.stop(silent=silent)


class _Errand(Errand):
    def __init__(self, world: "World", replica: "Replica", server: "NameServer") -> None:
        super().__init__(world, replica, "10.0.0.9")
        self._replica = replica
        self._server = server
        self._turn = 0

    def start(self) -> None:
        self.begin()
        self.register()

    def stop(self, *, silent: bool) -> None:
        if silent and self.link is not None:
            # The name server notices only by the time-out of the registration.
            self._calls.clear()
            self.link.open = False
            self.link = None
        self.forget_calls()
        self.end()

    def register(self) -> None:
        if not self.alive:
            return
        self._turn += 1
        settings = self._replica.settings
        command = registration(
            b"".join(body_pieces(self._replica.state)),
            cluster=settings.cluster,
            group=settings.group,
            address=settings.address,
        )
        self.call(command, TIMEOUT_US, partial(self._answered, self._turn))

    def disconnected(self) -> None:
        """Register again over another connection: the end of this one removed the registration."""
        self.after(RETRY_US, "register again", partial(self._again, self._turn))

    def _choose(self) -> ServerProcess | None:
        return self._server if self._server.alive else None

    def _answered(self, turn: int, answer: RemotingCommand | RemotingError) -> None:
        good = isinstance(answer, RemotingCommand) and answer.code == ResponseCode.SUCCESS
        if isinstance(answer, RemotingCommand) and not good:
            self.world.laws.broken("registration", f"{self.name}: {answer.remark}")
        wait = PERIOD_US if good else RETRY_US
        self.after(wait, "register again", partial(self._again, turn))

    def _again(self, turn: int) -> None:
        if turn == self._turn:
            self.register()
