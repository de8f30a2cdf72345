"""
The group's stable address on one machine: whoever leads binds it, nobody else.

The rule: the port says who serves. A leader listens as soon as it can serve, and tries every ten
milliseconds while its predecessor still holds the port; a replica that leads no more lets go of
it first and deals with everything else afterwards. The port minus two serves the same protocol,
because clients up to 4.4 send there (RocketMQ's VIP channel, ``MixAll.brokerVIPChannel``).
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from orderlymq_broker.settings import Address
from orderlymq_runtime.server import PortInUseError, RemotingServer

_log = logging.getLogger(__name__)

BIND_RETRY_S: Final = 0.01

# A predecessor lets go within milliseconds of losing its leadership; somebody else who holds the
# port for seconds is a mistake that a person must hear of, again and again.
COMPLAIN_AFTER_S: Final = 3.0

VIP_PORT_DISTANCE: Final = 2


def addresses_of(address: Address) -> list[Address]:
    """Return the address and the one that old clients derive from it."""
    vip_port = address.port - VIP_PORT_DISTANCE
    if vip_port <= 0:
        return [address]
    return [address, Address(address.host, vip_port)]


class LeaderAddress:
    """Binds and releases the addresses of the group.

    Life cycle: `acquire` and `release` any number of times, in any order; `close` at the end.
    """

    def __init__(self, server: RemotingServer, address: Address) -> None:
        self.bound = False
        self._server = server
        self._addresses = addresses_of(address)
        self._task: asyncio.Task[None] | None = None

    def acquire(self) -> None:
        """Bind as soon as the addresses are free."""
        self._replace(self._bind)

    def release(self) -> None:
        """Stop listening; accepted connections stay."""
        self.bound = False
        self._replace(self._server.close_listeners)

    async def close(self) -> None:
        """Stop whatever is under way and let go."""
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
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._after(self._task, work), name="address")

    @staticmethod
    async def _after(
        former: asyncio.Task[None] | None, work: Callable[[], Awaitable[None]]
    ) -> None:
        if former is not None:
            await asyncio.wait([former])
        await work()

    async def _bind(self) -> None:
        loop = asyncio.get_running_loop()
        complain_at = loop.time() + COMPLAIN_AFTER_S
        for address in self._addresses:
            while True:
                try:
                    await self._server.listen(address.host, address.port)
                    break
                except PortInUseError as error:
                    if loop.time() >= complain_at:
                        complain_at = loop.time() + COMPLAIN_AFTER_S
                        _log.error("this replica leads but cannot be reached: %s", error)
                    await asyncio.sleep(BIND_RETRY_S)
                except OSError as error:
                    if address is not self._addresses[0]:
                        _log.warning("old clients cannot use %s: %s", address, error)
                        break
                    raise
        self.bound = True
        _log.info("clients are served at %s", ", ".join(map(str, self._addresses)))
