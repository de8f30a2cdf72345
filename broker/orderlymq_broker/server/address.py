"""
The broker group's stable address on one machine: the leader binds it, no other replica.

The rule: the port shows which replica serves. A leader listens as soon as it can serve, and tries every ten
milliseconds while its predecessor still holds the port. A replica that no longer leads first releases
the port and then does everything else. A leader that cannot bind the address reports this, is not
ready, and after some time hands the leadership to a replica that may bind it. The port minus two serves the same
protocol, because clients up to 4.4 send there (RocketMQ's VIP channel, ``MixAll.brokerVIPChannel``).
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from orderlymq_broker.settings import Address, BrokerSettings
from orderlymq_runtime.process.supervisor import Supervisor
from orderlymq_runtime.remoting.server import Outside, PortInUseError, RemotingServer

_log = logging.getLogger(__name__)

BIND_RETRY_S: Final = 0.01

# A predecessor releases the port within milliseconds of losing its leadership. If another process holds the
# port for seconds, that is a mistake that a person must notice, so it is logged repeatedly.
COMPLAIN_AFTER_S: Final = 3.0

# If the port is free again by then, a predecessor that hung had it; if not, a person or another replica
# is needed.
GIVE_UP_AFTER_S: Final = 10.0

VIP_PORT_DISTANCE: Final = 2


class Endpoint(NamedTuple):
    """An address at which a replica listens for clients, and the further listener that it belongs to, if any."""

    host: str
    port: int
    outside: Outside | None = None

    def __str__(self) -> str:
        return str(Address(self.host, self.port))


def endpoints_of(settings: BrokerSettings) -> list[Endpoint]:
    """Return the group's own endpoint, those of its further listeners, and the one that old clients derive.

    Raises:
        TlsError: a file of a listener cannot be used.
    """
    own = settings.listen or settings.address
    found = [Endpoint(own.host, own.port)]
    found += [Endpoint(each.host, each.port, each.mark()) for each in settings.listeners]
    vip_port = own.port - VIP_PORT_DISTANCE
    if vip_port > 0:
        found.append(Endpoint(own.host, vip_port))
    return found


class LeaderAddress:
    """Binds and releases the addresses of the group.

    Life cycle: `acquire` and `release` any number of times, in any order; `close` at the end.

    Args:
        unreachable: called when the address could not be bound for *give_up_after_s*, and again each time
            this time has passed.

    Attributes:
        failures: how often the address could not be bound for COMPLAIN_AFTER_S.
        bound: whether the group's own address is bound; a further one may be missing.
        complaint: why it is not bound now, "" if it is or is not wanted.
    """

    def __init__(
        self,
        server: RemotingServer,
        endpoints: Sequence[Endpoint],
        supervisor: Supervisor | None = None,
        unreachable: Callable[[], None] = lambda: None,
        give_up_after_s: float = GIVE_UP_AFTER_S,
    ) -> None:
        self.bound = False
        self.failures = 0
        self.complaint = ""
        self._server = server
        self._supervisor = supervisor or Supervisor()
        self._unreachable = unreachable
        self._give_up_after_s = give_up_after_s
        self._endpoints = endpoints
        self._task: asyncio.Task[None] | None = None

    def acquire(self) -> None:
        """Bind as soon as the addresses are free."""
        self._replace(self._bind)

    def release(self) -> None:
        """Stop listening; accepted connections stay."""
        self.bound = False
        self.complaint = ""
        self._replace(self._server.close_listeners)

    async def close(self) -> None:
        """Stop any work in progress, and release the address."""
        self.bound = False
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._server.close_listeners()

    async def wait(self) -> None:
        """Wait until the last `acquire` or `release` is done; for tests and for the shutdown."""
        if self._task is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(self._task)

    def _replace(self, work: Callable[[], Awaitable[None]]) -> None:
        if self._task is not None:
            self._task.cancel()
        self._task = self._supervisor.keep("address", partial(self._after, self._task, work))

    @staticmethod
    async def _after(
        former: asyncio.Task[None] | None, work: Callable[[], Awaitable[None]]
    ) -> None:
        if former is not None:
            await asyncio.wait([former])
        await work()

    async def _bind(self) -> None:
        await self._server.close_listeners()
        own, *further = self._endpoints
        await self._bind_one(own)
        # With the group's own address, clients can reach it.
        self.bound = True
        self.complaint = ""
        async with asyncio.TaskGroup() as tasks:
            for each in further:
                tasks.create_task(self._bind_one(each), name=f"listen at {each}")

    async def _bind_one(self, endpoint: Endpoint) -> None:
        loop = asyncio.get_running_loop()
        is_own = endpoint is self._endpoints[0]
        complain_at = loop.time() + COMPLAIN_AFTER_S
        give_up_at = loop.time() + self._give_up_after_s
        while True:
            try:
                await self._server.listen(endpoint.host, endpoint.port, outside=endpoint.outside)
                _log.info("clients are served at %s", endpoint)
                return
            except OSError as error:
                problem = str(error)
                in_use = isinstance(error, PortInUseError)
            now = loop.time()
            if not is_own and (not in_use or now >= give_up_at):
                _log.warning("clients cannot use %s: %s", endpoint, problem)
                return
            if is_own:
                self.complaint = problem
            if is_own and now >= complain_at:
                complain_at = now + COMPLAIN_AFTER_S
                self.failures += 1
                _log.error("this replica leads but cannot be reached: %s", problem)
            if is_own and now >= give_up_at:
                give_up_at = now + self._give_up_after_s
                self._unreachable()
            await asyncio.sleep(BIND_RETRY_S)
