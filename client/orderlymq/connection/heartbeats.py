"""
Heartbeats: they tell brokers which producers and consumers a client has, and when these leave.

Rule: after a lost connection the client immediately sends a heartbeat on a new one, because a broker that just became
leader knows its clients only by their heartbeats.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from orderlymq.connection.routes import Routes
from orderlymq.connection.troubles import NO_LEADER, Troubles
from orderlymq.durations import seconds
from orderlymq.errors import BrokerError, StateError
from orderlymq.ownedtasks import OwnedTasks
from orderlymq.settings import ClientSettings
from orderlymq_protocol.body.catalogue import ConsumerData, HeartbeatData, ProducerData
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_protocol.header.extensions import EXT_PROCESS
from orderlymq_runtime.remoting.client import RemotingError

_log = logging.getLogger(__name__)

# A leader that returns soon gets a heartbeat soon; one that stays away is not asked all the time.
_GREET_FIRST_S: Final = 0.02
_GREET_MAX_S: Final = 1.0
_GOODBYE_TIMEOUT_S: Final = 1.0
_GOODBYE_AGAIN_S: Final = 0.05


class GroupMember(Protocol):
    """A consumer as its client sees it."""

    @property
    def group(self) -> str:
        """Return the consumer group."""

    def heartbeat(self) -> ConsumerData:
        """Return the data that heartbeats carry about this consumer."""

    def on_request(
        self, command: RemotingCommand, reply: Callable[[RemotingCommand], None], /
    ) -> bool:
        """Serve a broker's request for this group; return whether it was served."""

    def routes_changed(self, topic: str, /) -> None:
        """Note that a topic's queues have changed."""


class Client(Protocol):
    """The client that sends the heartbeats."""

    settings: ClientSettings
    client_id: str
    routes: Routes
    troubles: Troubles

    def check_caller(self) -> None:
        """Refuse a call that could get no answer."""

    async def invoke(
        self, address: str, command: RemotingCommand, timeout_s: float | None = None
    ) -> RemotingCommand:
        """Call *address* and return the answer, with any code."""


class Heartbeats:
    """The producers and consumers of one client, and the heartbeats that report them to brokers.

    Life cycle: `start` and `stop` any number of times; the client owns its tasks and ends them.

    Attributes:
        consumers: by their group.
    """

    def __init__(self, client: Client, tasks: OwnedTasks) -> None:
        self.consumers: dict[str, GroupMember] = {}
        self._client = client
        self._tasks = tasks
        self._producers: dict[str, int] = {}
        self._greeting: set[str] = set()
        self._is_on = False
        self._beating = asyncio.Lock()
        self._asked = self._answered = 0
        self._were_taken = True

    def start(self) -> None:
        """Begin to send heartbeats at their interval."""
        self._is_on = True
        self._beating = asyncio.Lock()  # the event loop may differ from last time
        self._tasks.keep(self._beat, "heartbeat")

    def stop(self) -> None:
        """Send no more heartbeats to lost addresses."""
        self._is_on = False

    # -- who is reported

    def add_producer(self, group: str) -> None:
        """Report a producer group to brokers from the next heartbeat on."""
        self._producers[group] = self._producers.get(group, 0) + 1

    async def remove_producer(self, group: str) -> None:
        """Stop reporting the group once its last producer is closed, and notify the brokers."""
        self._producers[group] -= 1
        if not self._producers[group]:
            del self._producers[group]
            await self._unregister({"producerGroup": group})

    def add_consumer(self, member: GroupMember) -> None:
        """Report a consumer to brokers from the next heartbeat on.

        Raises:
            StateError: The client has a consumer of this group already, or runs on another event loop.
        """
        self._client.check_caller()
        if member.group in self.consumers:
            text = (
                f"The consumer group[{member.group}] has been created before, specify another name "
                f"please. It runs in this client, {self._client.client_id}."
            )
            _log.error(text)
            raise StateError(text)
        self.consumers[member.group] = member

    async def remove_consumer(self, member: GroupMember, *, keep_locks: bool = False) -> None:
        """Stop reporting the consumer and notify the brokers, which then free its locks.

        With *keep_locks* they are not notified: the member leaves when its last lock has ended with its lease.
        """
        if self.consumers.get(member.group) is member:
            del self.consumers[member.group]
            if not keep_locks:
                await self._unregister({"consumerGroup": member.group})

    # -- heartbeats

    async def beat_all(self) -> bool:
        """Send one heartbeat to every known broker address; return whether all accepted it. Failures are logged.

        Calls during a heartbeat share the next one. Otherwise many consumers that start together would each send one
        that names them all.
        """
        if not (self._producers or self.consumers):
            return True
        self._asked += 1
        number = self._asked
        async with self._beating:
            if number > self._answered:
                asked = self._asked
                addresses = self._client.routes.addresses()
                taken = await asyncio.gather(*(self._beat_one(address) for address in addresses))
                self._answered, self._were_taken = asked, all(taken)
            return self._were_taken

    def greet(self, address: str) -> None:
        """Send a heartbeat soon to a broker that may not know this client."""
        anybody = self.consumers or self._producers
        if self._is_on and address not in self._greeting and anybody:
            self._greeting.add(address)
            self._tasks.start(self._greet(address), f"greet {address}")

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(seconds(self._client.settings.heartbeat_broker_interval))
            await self.beat_all()

    async def _beat_one(self, address: str) -> bool:
        client = self._client
        body = HeartbeatData(
            client.client_id,
            tuple(ProducerData(group) for group in sorted(self._producers)),
            tuple(member.heartbeat() for _, member in sorted(self.consumers.items())),
        ).to_json()
        command = request(RequestCode.HEART_BEAT, {EXT_PROCESS: str(os.getpid())}, body)
        try:
            answer = await client.invoke(address, command)
        except RemotingError as error:
            _log.debug("no heartbeat to %s: %s", address, error)
            return False
        if answer.code == ResponseCode.SUCCESS:
            client.troubles.answered(address, "the heartbeat")
            return True
        refusal = BrokerError(answer.code, answer.remark, address)
        client.troubles.failed(address, "the heartbeat", refusal)
        return False

    async def _greet(self, address: str) -> None:
        """Send heartbeats to a lost address until one arrives; give up if no route names it any more."""
        delay_s = _GREET_FIRST_S
        try:
            while address in self._client.routes.addresses():
                await asyncio.sleep(delay_s)
                if await self._beat_one(address):
                    return
                delay_s = min(_GREET_MAX_S, delay_s * 2)
        finally:
            self._greeting.discard(address)

    async def _unregister(self, what: Mapping[str, str]) -> None:
        """Report to all brokers that this client has left a group; an unreachable broker notices by itself."""
        ext = {"clientID": self._client.client_id, **what}
        calls = (self._say_goodbye(address, ext) for address in self._client.routes.addresses())
        await asyncio.gather(*calls, return_exceptions=True)

    async def _say_goodbye(self, address: str, ext: Mapping[str, str]) -> None:
        """Report the end to one broker group.

        For a consumer it waits for an election; otherwise the member's locks would be free only when its lease ends.
        """
        loop = asyncio.get_running_loop()
        end_s = loop.time() + _GOODBYE_TIMEOUT_S
        while True:
            command = request(RequestCode.UNREGISTER_CLIENT, ext)
            try:
                answer = await self._client.invoke(address, command, end_s - loop.time())
            except RemotingError as error:
                said = str(error)
            else:
                if answer.code not in NO_LEADER:
                    return
                said = answer.remark or ""
            if "consumerGroup" not in ext or loop.time() + _GOODBYE_AGAIN_S >= end_s:
                _log.info("not unregistered everywhere: %s", said)
                return
            await asyncio.sleep(_GOODBYE_AGAIN_S)
