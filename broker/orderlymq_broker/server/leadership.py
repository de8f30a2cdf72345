"""
Effects of a change of leadership on clients.

The rules: a replica that no longer leads first stops listening. Then it forwards the requests that its clients still
send, and disconnects each client when it is quiet. No request is answered with a guess. A planned move holds requests
back while no replica leads, so that none of them fails. If no replica can answer requests for too long, their
connections are closed, which a client notices immediately.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import islice
from typing import Final

from orderlymq_broker.server.address import LeaderAddress
from orderlymq_broker.server.forwarder import ForwardedClient, Inbox, Outbox
from orderlymq_broker.server.router import Admission, ClientConnection, Router
from orderlymq_raft import RoleChange
from orderlymq_raft.types import NodeId

# Less than the three seconds after which a Java client gives a send up, so that it tries again before that.
WAIT_MAX_S: Final = 1.5

# A client that sends nothing but pulls for this long is disconnected. A busy one is disconnected between two requests
# after it has been forwarded for QUIET_BY_FORCE_S. In the long run, the extra hop costs more than one new connection.
QUIET_S: Final = 1.0
QUIET_BY_FORCE_S: Final = 10.0

# A client that connected to a replica which does not lead is forwarded, and disconnected after a while, so that it
# connects to the leader itself. The same holds at a replica that knows no leader: the group may have
# removed it, and its heartbeats are answered.
FOLLOWER_CLIENT_S: Final = 3.0

# A commit takes milliseconds; if the disk hangs, it is better to move the leadership anyway.
SETTLE_S: Final = 0.3
SETTLE_POLL_S: Final = 0.001
# Raft does not report a given up transfer, and all requests are held back meanwhile.
GIVEN_UP_POLL_S: Final = 0.02

# In Kubernetes, clients come through a Service, which follows the leader's label: its EndpointSlice immediately, the
# rules of the nodes up to a second later. Until then clients come here. The address of a deleted pod
# does not answer at all: a Java client waits three seconds for its connection. A pod that is deleted
# by force has two seconds after SIGTERM.
SERVICE_FOLLOWS_S: Final = 1.6
PASS_ON_TICK_S: Final = 0.1
# Of these two seconds, this leaves two tenths for the store.
LAST_ANSWERS_S: Final = 0.2

# A former leader still votes and hears the next leader; disconnecting 8,000 clients in one tick blocks its loop for 0.25 s.
DISCONNECTED_MAX: Final = 500

# The answer that makes a client pull again must be sent before its connection is reset.
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
        """Switch to the leader that is known now."""
        former, self.leader = self._outbox.leader, change.leader
        self._outbox.leader = None if leads else change.leader
        if former is not None and former != self._outbox.leader:
            self._outbox.leader_lost(former)
        if not leads:
            # No one here answers requests that were forwarded to a leader that never came to serve.
            self._inbox.clear()
        if self._outbox.leader is not None:
            self._moved.set()
            self._router.set_admission(Admission.FORWARD)
        elif not self.serving:
            self._router.set_admission(Admission.WAIT)

    def serving_began(self) -> None:
        """Begin to serve: bind the address, and answer waiting requests."""
        self.serving = True
        self._ended_at = None
        self._outbox.leader = None
        self._router.set_admission(Admission.SERVE)
        if self._address is not None:
            self._address.acquire()

    def serving_ended(self) -> None:
        """Release the address; requests from now on wait for the next leader."""
        self.serving = False
        self._ended_at = self._seconds()
        if self._address is not None:
            self._address.release()
        self._router.set_admission(Admission.WAIT)
        self._inbox.clear()

    def needed_until(self) -> float | None:
        """Return until when (loop time) a Service may send clients here if this replica ends now, or None."""
        just_led = (
            self._ended_at is not None and self._seconds() - self._ended_at < SERVICE_FOLLOWS_S
        )
        if self.serving or just_led:
            return asyncio.get_running_loop().time() + SERVICE_FOLLOWS_S
        return None

    # -- time ------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Close clients that waited too long, and disconnect quiet ones; called about every 100 ms."""
        now = self._seconds()
        self._outbox.retry()
        self._inbox.retry()
        self._router.retry()
        if not self._router.waiting:
            self._waiting_since = None
        elif self._waiting_since is None or self._worked_off != self._router.worked_off:
            # On a slow link, each request waits for one confirmation; the queue moves, but may never be empty.
            self._waiting_since = now
            self._worked_off = self._router.worked_off
        elif now - self._waiting_since > WAIT_MAX_S:
            self._waiting_since = None
            self._router.drop_waiting("the group has no leader at present")
        if self._ended_at is not None:
            self._release_quiet(now, self._ended_at)
        self._release_follower_clients(now)

    def _release_follower_clients(self, now: float) -> None:
        follower_clients = [
            client for client in self._router.connections() if self._router.came_to_follower(client)
        ]
        if self._follower_clients_since or follower_clients:
            since = self._follower_clients_since
            self._follower_clients_since = {
                client.id: since.get(client.id, now) for client in follower_clients
            }
        self._disconnect_some(
            client
            for client in follower_clients
            if now - self._follower_clients_since[client.id] > FOLLOWER_CLIENT_S
        )

    def _release_quiet(self, now: float, ended_at: float) -> None:
        if now - ended_at < QUIET_S:
            return
        quiet_since = now if now - ended_at > QUIET_BY_FORCE_S else now - QUIET_S
        clients = self._clients_here()
        self._disconnect_some(
            client for client in clients if self._outbox.is_quiet(client, quiet_since)
        )
        if not clients:
            self._ended_at = None

    def _disconnect_some(self, clients: Iterable[ClientConnection]) -> None:
        """Disconnect the first of *clients* that can leave; later ticks disconnect the others."""
        able = (each for each in clients if self._can_leave(each))
        for client in list(islice(able, DISCONNECTED_MAX)):
            self.disconnect(client)

    def _can_leave(self, client: ClientConnection) -> bool:
        return client.id not in self._leaving and not self._outbox.waits(client)

    def _clients_here(self) -> list[ClientConnection]:
        return [
            client
            for client in self._router.connections()
            if not isinstance(client, ForwardedClient) and not self._router.came_to_follower(client)
        ]

    def disconnect(self, client: ClientConnection) -> None:
        """Answer the held pulls of a client, then reset its connection, so that it connects again.

        A client that waits for another answer stays; otherwise its pulls would be sent back at every tick.
        """
        if not self._can_leave(client):
            return
        self._leaving.add(client.id)
        self._outbox.release_pulls(client)

        def close() -> None:
            self._leaving.discard(client.id)
            # If it sent a request at the last moment, it is disconnected the next time.
            if not self._outbox.waits(client):
                client.close(orderly=False, kind="leads_no_more")

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
        """Hold requests back, finish pending ones, call *transfer*, and wait for another leader.

        *settled* returns whether no request is pending any more: requests that did not reach the log before the
        transfer could only be refused. *given_up* returns whether this replica goes on leading because the other one
        was never asked to lead. Returns whether another replica leads; if not, this one serves on. Exceptions of
        *transfer* pass through.
        """
        self._moved.clear()
        self._router.set_admission(Admission.HOLD)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SETTLE_S
        try:
            # Polling lasts milliseconds and happens once per move.
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
        while loop.time() < until and self._router.connections():
            self.tick()
            await asyncio.sleep(PASS_ON_TICK_S)

    async def drain(self, timeout_s: float) -> None:
        """Wait for answers that clients still expect through us, then disconnect every client."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        # Polled once in the life of a process, so the outbox has no event for it.
        while loop.time() < deadline and any(map(self._outbox.waits, self._clients_here())):  # noqa: ASYNC110
            await asyncio.sleep(FAREWELL_S)
        for client in self._clients_here():
            # The process ends, so the pulls of clients that still wait for other answers also need an answer.
            self._outbox.release_pulls(client)
            self.disconnect(client)
        await asyncio.sleep(2 * FAREWELL_S)
