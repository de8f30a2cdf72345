"""
Effects of a change of leadership on clients.

The rules: a replica that leads no more first stops listening, then passes on what its clients
still ask, and disconnects each client when it is quiet; nobody is answered a guess. A planned move
holds requests back for the moment in which nobody leads, so that none of them fails. Requests
that nobody can answer for too long end with their connection, which a client notices immediately.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import islice
from typing import Final

from orderlymq_broker.server.address import LeaderAddress
from orderlymq_broker.server.forwarder import ForwardedLine, Inbox, Outbox
from orderlymq_broker.server.router import Admission, Line, Router
from orderlymq_raft import RoleChange
from orderlymq_raft.types import NodeId

# Below the three seconds after which a Java client gives a send up: it tries again meanwhile.
WAIT_MAX_S: Final = 1.5

# A client that asks nothing but pulls for so long is disconnected; a busy one is disconnected between two
# requests when it has been passed on for QUIET_BY_FORCE_S: a hop for ever costs more than one
# new connection.
QUIET_S: Final = 1.0
QUIET_BY_FORCE_S: Final = 10.0

# A client that came to a replica that does not lead is passed on; it is disconnected by and by, so that it
# comes to the leader itself. So is one that came to a replica which knows of no leader: the group may have
# removed it, and its heartbeats are answered.
FOLLOWER_CLIENT_S: Final = 3.0

# A commit takes milliseconds; with a disk that hangs leadership had better move anyway.
SETTLE_S: Final = 0.3
SETTLE_POLL_S: Final = 0.001
# Raft says so to nobody; everybody who asks for something is held back meanwhile.
GIVEN_UP_POLL_S: Final = 0.02

# In Kubernetes clients come by a Service, which follows the leader's label: its EndpointSlice immediately, the
# rules of the nodes up to a second later. Until then clients come here, and the address of a pod that is
# gone answers nothing at all: a Java client waits three seconds for its connection. A pod that is deleted
# by force has two seconds from SIGTERM on.
SERVICE_FOLLOWS_S: Final = 1.6
PASS_ON_TICK_S: Final = 0.1
# Of the two seconds that leaves two tenths for the store.
LAST_ANSWERS_S: Final = 0.2

# A former leader votes, and hears the next one: 8,000 clients that leave in one tick keep its loop for a quarter of a second.
DISCONNECTED_MAX: Final = 500

# The answer that makes a client pull again must be out before its connection is reset.
FAREWELL_S: Final = 0.02


class Leadership:
    """Keeps admission, address and forwarding in step with the role of this replica."""

    def __init__(
        self,
        router: Router,
        outbox: Outbox,
        inbox: Inbox,
        address: LeaderAddress | None,
        seconds: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self.serving = False
        self.leader: NodeId | None = None
        self._router = router
        self._outbox = outbox
        self._inbox = inbox
        self._address = address
        self._seconds = seconds
        self._call_later = call_later
        self._waiting_since: float | None = None
        self._worked_off = 0
        self._ended_at: float | None = None
        self._moved = asyncio.Event()
        self._leaving: set[int] = set()
        self._follower_clients_since: dict[int, float] = {}

    # -- what the loop says ----------------------------------------------------------------------

    def role_changed(self, change: RoleChange, *, leads: bool) -> None:
        """Turn to the leader that is known now."""
        former, self.leader = self._outbox.leader, change.leader
        self._outbox.leader = None if leads else change.leader
        if former is not None and former != self._outbox.leader:
            self._outbox.leader_lost(former)
        if not leads:
            # Nobody here answers requests that were passed on to a leader that never came to serve.
            self._inbox.clear()
        if self._outbox.leader is not None:
            self._moved.set()
            self._router.set_admission(Admission.FORWARD)
        elif not self.serving:
            self._router.set_admission(Admission.WAIT)

    def serving_began(self) -> None:
        """Serve: bind the address, answer waiting requests."""
        self.serving = True
        self._ended_at = None
        self._outbox.leader = None
        self._router.set_admission(Admission.SERVE)
        if self._address is not None:
            self._address.acquire()

    def serving_ended(self) -> None:
        """Release the address; what arrives from now on waits for the next leader."""
        self.serving = False
        self._ended_at = self._seconds()
        if self._address is not None:
            self._address.release()
        self._router.set_admission(Admission.WAIT)
        self._inbox.clear()

    def needed_until(self) -> float | None:
        """Return how long a Service may lead clients here if this replica ends now, by the loop's clock."""
        just_led = (
            self._ended_at is not None and self._seconds() - self._ended_at < SERVICE_FOLLOWS_S
        )
        if self.serving or just_led:
            return asyncio.get_running_loop().time() + SERVICE_FOLLOWS_S
        return None

    # -- time ------------------------------------------------------------------------------------

    def tick(self) -> None:
        """End waiting that lasts too long, and disconnect quiet clients; about every 100 ms."""
        now = self._seconds()
        self._outbox.retry()
        self._inbox.retry()
        self._router.retry()
        if not self._router.waiting:
            self._waiting_since = None
        elif self._waiting_since is None or self._worked_off != self._router.worked_off:
            # Each waits for one confirmation on a slow link; the queue moves, and may never be empty.
            self._waiting_since = now
            self._worked_off = self._router.worked_off
        elif now - self._waiting_since > WAIT_MAX_S:
            self._waiting_since = None
            self._router.drop_waiting("nobody leads the group at present")
        if self._ended_at is not None:
            self._release_quiet(now, self._ended_at)
        self._release_follower_clients(now)

    def _release_follower_clients(self, now: float) -> None:
        follower_clients = [
            line for line in self._router.lines() if self._router.came_to_follower(line)
        ]
        if self._follower_clients_since or follower_clients:
            since = self._follower_clients_since
            self._follower_clients_since = {
                line.id: since.get(line.id, now) for line in follower_clients
            }
        self._disconnect_some(
            line
            for line in follower_clients
            if now - self._follower_clients_since[line.id] > FOLLOWER_CLIENT_S
        )

    def _release_quiet(self, now: float, ended_at: float) -> None:
        if now - ended_at < QUIET_S:
            return
        quiet_since = now if now - ended_at > QUIET_BY_FORCE_S else now - QUIET_S
        lines = self._lines_here()
        self._disconnect_some(line for line in lines if self._outbox.is_quiet(line, quiet_since))
        if not lines:
            self._ended_at = None

    def _disconnect_some(self, lines: Iterable[Line]) -> None:
        """Disconnect the first of *lines* that can leave; the next tick comes to the others."""
        able = (each for each in lines if self._can_leave(each))
        for line in list(islice(able, DISCONNECTED_MAX)):
            self.disconnect(line)

    def _can_leave(self, line: Line) -> bool:
        return line.id not in self._leaving and not self._outbox.waits(line)

    def _lines_here(self) -> list[Line]:
        return [
            line
            for line in self._router.lines()
            if not isinstance(line, ForwardedLine) and not self._router.came_to_follower(line)
        ]

    def disconnect(self, line: Line) -> None:
        """Answer the held pulls of a client, then reset its connection, so that it connects again.

        A client that waits for another answer stays: its pulls would be sent back at every tick.
        """
        if not self._can_leave(line):
            return
        self._leaving.add(line.id)
        self._outbox.release_pulls(line)

        def close() -> None:
            self._leaving.discard(line.id)
            # Asked in the very last moment: it is disconnected the next time.
            if not self._outbox.waits(line):
                line.close(orderly=False, kind="leads_no_more")

        self._call_later(FAREWELL_S, close)

    # -- planned moves ---------------------------------------------------------------------------

    async def move(
        self,
        *,
        settled: Callable[[], bool],
        transfer: Callable[[], None],
        given_up: Callable[[], bool],
        timeout_s: float,
    ) -> bool:
        """Hold requests back, finish pending ones, call *transfer*, wait for another leader.

        *settled* says that no request is pending any more: what did not reach the log before the
        transfer could only be refused. *given_up* says that this replica leads on, as the other one did not come
        as far as to be asked. Returns whether another replica leads; if not, this one serves on. What *transfer* raises passes.
        """
        self._moved.clear()
        self._router.set_admission(Admission.HOLD)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SETTLE_S
        try:
            # Polled for milliseconds, once per move.
            while not settled() and loop.time() < deadline:  # noqa: ASYNC110
                await asyncio.sleep(SETTLE_POLL_S)
            transfer()
            async with asyncio.timeout(timeout_s):
                while not self._moved.is_set():
                    if given_up():
                        return False
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._moved.wait(), GIVEN_UP_POLL_S)
        except TimeoutError:
            return False
        finally:
            if self.serving:
                self._router.set_admission(Admission.SERVE)
        return True

    async def pass_on(self, until: float) -> None:
        """Forward requests until *until* (the loop's time), or until no client is left."""
        loop = asyncio.get_running_loop()
        while loop.time() < until and self._router.lines():
            self.tick()
            await asyncio.sleep(PASS_ON_TICK_S)

    async def drain(self, timeout_s: float) -> None:
        """Wait for answers that clients still expect through us, then disconnect every client."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        # Polled once in the life of a process, so the outbox has no event for it.
        while loop.time() < deadline and any(map(self._outbox.waits, self._lines_here())):  # noqa: ASYNC110
            await asyncio.sleep(FAREWELL_S)
        for line in self._lines_here():
            # The process ends: also the pulls of a client that still waits need their answer.
            self._outbox.release_pulls(line)
            self.disconnect(line)
        await asyncio.sleep(2 * FAREWELL_S)
