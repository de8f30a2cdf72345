"""
A client process: one connection at a time to the replica that seems to lead, requests with time-outs.

It finds its broker as clients of a service address do: usually the replica that serves, sometimes any replica. The
outcome of a request over a broken connection is unknown; the caller decides.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final

from orderlymq.connection.signatures import signed
from orderlymq_broker.server.router import ClientConnection
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.signature import Signer
from orderlymq_runtime.remoting.client import (
    ConnectFailed,
    ConnectionLost,
    RemotingError,
    RequestTimeout,
)
from tests.sim.network import RESET_DELAY_US, Pipe
from tests.sim.timeline import MS, SECOND, START_WALL_MS, Process

if TYPE_CHECKING:
    from tests.sim.world import World

KEEPALIVE_US: Final = 5 * SECOND
ADDRESS: Final = "10.0.0.9:10911"

OnAnswer = Callable[[RemotingCommand | RemotingError], None]


class ServerProcess(Process):
    """A server that a client may connect to: a broker replica or a name server."""

    def client_made(self, client: ClientConnection) -> None:
        """Register a client's connection."""
        raise NotImplementedError

    def client_received(self, client: ClientConnection, command: RemotingCommand) -> None:
        """Handle a request."""
        raise NotImplementedError

    def client_lost(self, client: ClientConnection) -> None:
        """Forget a client's connection."""
        raise NotImplementedError


class Link:
    """A connection; the server sees it as a `ClientConnection`."""

    def __init__(self, client: "Client", server: "ServerProcess", number: int) -> None:
        network = client.world.network
        self.id = number
        self.peer = (client.host, 30_000 + number % 30_000)
        self.local: tuple[str, int] | None = None
        self.listener = ""
        self.client = client
        self.server = server
        self.up = Pipe(network, client.name, server)
        self.down = Pipe(network, server.name, client)
        self.open = True  # on the client's side
        self.is_closing = False  # on the broker's side
        self._lost = False
        self._life = server.life
        self.up.push("connect", lambda: server.client_made(self))

    # -- the server's side

    def send(self, command: RemotingCommand) -> None:
        """Write a command to the client."""
        if not self._lost:
            self.down.push("answer", partial(self.client.frame_arrives, self, command))

    def close(self, *, orderly: bool = True, kind: str, reason: str = "") -> None:
        """End the connection."""
        if self._lost:
            return
        self.is_closing = True
        self.down.push("closed", partial(self.client.link_lost, self))
        self.server.after(0, "line lost", self._client_lost)

    def receive(self, command: RemotingCommand) -> None:
        """Deliver a request to the server."""
        self.server.client_received(self, command)

    def _client_lost(self) -> None:
        if not self._lost:
            self._lost = True
            self.server.client_lost(self)

    # -- the client's side

    @property
    def server_lives(self) -> bool:
        """Return whether the process that the connection was made to still runs."""
        return self.server.alive and self.server.life == self._life

    def hang_up(self) -> None:
        """Close from the client's side; a broker that the message cannot reach notices later."""
        if not self.open:
            return
        self.open = False
        if not self.server_lives:
            return
        self.up.push("hang up", self._client_lost)
        if self.up.stuck:
            self.server.after(KEEPALIVE_US, "keepalive", self._client_lost)


@dataclass(slots=True)
class _Call:
    on_answer: OnAnswer
    link: Link


class Client(Process):
    """The common part of producers and consumers."""

    def __init__(self, world: "World", name: str, host: str) -> None:
        super().__init__(world.timeline, name)
        self.world = world
        self.host = host
        self.link: Link | None = None
        self.account = ""  # access key; requests are signed with its secret
        self._signs: Signer | None = None
        self._calls: dict[int, _Call] = {}
        self._opaque = 0

    def call(self, command: RemotingCommand, timeout_us: int, on_answer: OnAnswer) -> None:
        """Send a request; *on_answer* is called once, later, with the answer or the error."""
        link = self._connected()
        if link is None:
            error = ConnectFailed("refused", address=ADDRESS, maybe_sent=False)
            self.after(5 * MS, "refused", lambda: on_answer(error))
            return
        self._opaque += 1
        opaque = command.opaque = self._opaque
        self._sign(command)
        on_answer = self._signing_again(command, timeout_us, on_answer)
        on_answer = self.world.laws.access_watched(self.account, command, on_answer)
        self._calls[opaque] = _Call(on_answer, link)
        self._push(link, command)
        self.after(timeout_us, "time-out", partial(self._timed_out, opaque))

    def tell(self, command: RemotingCommand) -> None:
        """Send a oneway request."""
        link = self._connected()
        if link is not None:
            self._opaque += 1
            command.opaque = self._opaque
            self._sign(command)
            self._push(link, command)

    def answered(self, notice: RemotingCommand) -> None:
        """Handle a request that the broker sends by itself."""

    def connected(self) -> None:
        """Note that another connection was made."""

    def disconnected(self) -> None:
        """Note that a connection was lost."""

    # -- the connection

    def _connected(self) -> Link | None:
        if self.link is not None and self.link.open:
            return self.link
        replica = self._choose()
        if replica is None or not replica.alive:
            return None
        world = self.world
        world.network.connections += 1
        self.link = Link(self, replica, world.network.connections)
        self.connected()
        return self.link

    def _sign(self, command: RemotingCommand) -> None:
        secret = self.world.secrets.get(self.account)
        if secret is None:
            return
        ext = {**command.ext, "AccessKey": self.account}
        ext = self._signer(secret).sign(ADDRESS, command.code, ext, command.body)
        command.ext = signed(
            ext, command.body, access_key=self.account, secret_key=secret, token=""
        )

    def _signer(self, secret: str) -> Signer:
        if self._signs is None:
            numbers = count()
            self._signs = Signer(
                self.account,
                secret.encode(),
                clock_ms=lambda: START_WALL_MS + self.timeline.now // MS,
                nonce=lambda: f"{self.name}-{next(numbers)}",
            )
        return self._signs

    def _signing_again(
        self, command: RemotingCommand, timeout_us: int, on_answer: OnAnswer
    ) -> OnAnswer:
        """Return a handler that asks again if the answer carries a new leader's mark, and else calls *on_answer*."""
        signer = self._signs
        if signer is None:
            return on_answer

        def answered(answer: RemotingCommand | RemotingError) -> None:
            again = isinstance(answer, RemotingCommand) and signer.learn(
                ADDRESS, answer, command.ext
            )
            if again:
                self.call(replace(command), timeout_us, on_answer)
            else:
                on_answer(answer)

        return answered

    def _choose(self) -> "ServerProcess | None":
        random, world = self.timeline.random, self.world
        if world.address is not None:
            return world.address.holder
        alive = [each for each in world.replicas.values() if each.alive]
        serving = [each for each in alive if each.loop.serving]
        if serving and random.random() < world.plan.find_leader:
            return random.choice(serving)
        return random.choice(alive) if alive else None

    def _push(self, link: Link, command: RemotingCommand) -> None:
        if not link.server_lives:
            # The kernel of a living machine sends a reset; a dead machine sends nothing.
            if not link.down.stuck:
                self.after(RESET_DELAY_US, "reset", partial(self.link_lost, link))
            return
        link.up.push("request", partial(link.receive, command))

    def frame_arrives(self, link: Link, command: RemotingCommand) -> None:
        """Handle a command from the broker."""
        if not link.open:
            return
        if not command.is_response:
            self.answered(command)
            return
        call = self._calls.pop(command.opaque, None)
        if call is not None:
            call.on_answer(command)

    def link_lost(self, link: Link) -> None:
        """Fail the requests of a connection that is gone."""
        if not link.open:
            return
        link.hang_up()
        self.disconnected()
        error = ConnectionLost("reset", address=ADDRESS, maybe_sent=True)
        for opaque in [opaque for opaque, call in self._calls.items() if call.link is link]:
            call = self._calls.pop(opaque, None)
            if call is not None:
                call.on_answer(error)

    def _timed_out(self, opaque: int) -> None:
        call = self._calls.pop(opaque, None)
        if call is None:
            return
        self.world.coverage["request timed out"] += 1
        if self.link is call.link:
            call.link.hang_up()
        call.on_answer(RequestTimeout("no answer", address=ADDRESS, maybe_sent=True))

    def forget_calls(self) -> None:
        """Drop all calls: the process has ended."""
        self._calls.clear()
        if self.link is not None:
            self.link.hang_up()
            self.link = None


class Errand(Client):
    """A connection of a process to another server: it lives, pauses and ends with its owner."""

    def __init__(self, world: "World", owner: Process, host: str) -> None:
        super().__init__(world, owner.name, host)
        self._owner = owner

    @property
    def paused_until(self) -> int:
        """Return until when the owner is paused."""
        return self._owner.paused_until

    @paused_until.setter
    def paused_until(self, _: int) -> None:
        pass
