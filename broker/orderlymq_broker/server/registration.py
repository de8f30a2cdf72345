"""
Registers this group and its topics at every name server.

The rule: every replica registers the group's one stable address, whether it leads or not, so that the route stays
published when a replica dies. The connection stays open, because its end removes this replica's registration. A
replica that leaves does not unregister (104), because the address belongs to the group. A name server drops it by
itself when the last replica's connection is gone. The table of topics is encoded once for all name servers, in
pieces, because the same event loop sends raft's heartbeats.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from orderlymq_broker.processors.admin.topics import config_of
from orderlymq_broker.server.restoredgroups import RestoredGroups
from orderlymq_broker.settings import Address, BrokerSettings
from orderlymq_broker.state.broker import BrokerState
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.body.catalogue import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfigTable,
)
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.codec import FrameError
from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_protocol.header.catalogue import (
    HeaderError,
    RegisterBrokerHeader,
    RegisterBrokerResponseHeader,
)
from orderlymq_protocol.message.record import body_crc
from orderlymq_runtime.process.supervisor import Supervisor, end_tasks
from orderlymq_runtime.process.waits import wait_for
from orderlymq_runtime.remoting.client import RemotingClient, RemotingError
from orderlymq_runtime.remoting.signedcalls import invoke_signed, name_server_signer
from orderlymq_runtime.sockets.addresses import join_address

_log = logging.getLogger(__name__)

INVOKE_TIMEOUT_S: Final = 3.0
RETRY_FIRST_S: Final = 0.1
RETRY_MAX_S: Final = 1.0
# The longest pause after an explicit refusal, because building a registration of many topics takes much time of a
# leader's loop.
REFUSED_MAX_S: Final = 10.0

# The port that old brokers use for replication; clients show it but do not use it.
HA_PORT_DISTANCE: Final = 1


# Encoding this many takes three milliseconds; the election time-out may be 200.
PIECE_TOPICS: Final = 256
_TOPICS_BEGIN: Final = b'"topicConfigTable":{'


def registration(
    body: bytes, *, cluster: str, group: str, address: Address, restored_groups: str | None = None
) -> RemotingCommand:
    """Return the request that registers a group with the topics in *body*; see `body_pieces`."""
    header = RegisterBrokerHeader(
        broker_name=group,
        broker_addr=str(address),
        cluster_name=cluster,
        ha_server_addr=join_address(address.host, address.port + HA_PORT_DISTANCE),
        broker_id=0,
        body_crc32=body_crc(body),
        restored_groups=restored_groups,
    )
    return request(RequestCode.REGISTER_BROKER, header.to_ext(), body)


def body_pieces(state: BrokerState) -> Iterator[bytes]:
    """Yield the body of a registration, some topics in each piece, as the topics are at the first piece."""
    version = DataVersion(state.topics_version, state.topics_timestamp)
    configs = [topic.config for topic in state.topics.by_name.values()]
    empty = RegisterBrokerBody(TopicConfigTable({}, version)).encode()
    before, begin, after = empty.partition(_TOPICS_BEGIN)
    yield before + begin
    for start in range(0, len(configs), PIECE_TOPICS):
        rows = {each.name: config_of(each) for each in configs[start : start + PIECE_TOPICS]}
        yield (b"," if start else b"") + fastjson.dumps(rows)[1:-1]
    yield after


class Registration:
    """Keeps one registration alive at each name server.

    Life cycle: `start`, then `announce` whenever something has changed, `close` at the end.

    With a cluster secret, it signs registrations with the time of day of *clock_ms*. *restored* has the names of the
    groups that were restored together with this one.
    """

    def __init__(
        self,
        state: BrokerState,
        settings: BrokerSettings,
        restored: RestoredGroups,
        clock_ms: Callable[[], int],
        supervisor: Supervisor | None = None,
    ) -> None:
        self._restored = restored
        self._supervisor = supervisor or Supervisor()
        self.state = state
        self._settings = settings
        self._name_servers = [str(name_server) for name_server in settings.name_servers]
        secret = settings.cluster_secret
        self._signer = name_server_signer(secret, clock_ms) if secret else None
        self._client = RemotingClient(
            on_connection_lost=self._connection_lost, tls=settings.tls.peer_contexts()
        )
        # The request, and the versions from which it was made; one of the tasks makes it for all.
        self._command: tuple[tuple[DataVersion, str | None], RemotingCommand] | None = None
        self._turn = asyncio.Lock()
        self._wakes = {name_server: asyncio.Event() for name_server in self._name_servers}
        self._tasks: list[asyncio.Task[None]] = []
        self.registered: dict[str, bool] = dict.fromkeys(self._name_servers, False)

    def start(self) -> None:
        """Begin to register with all name servers."""
        self._tasks = [
            self._supervisor.keep(
                "registration",
                partial(self._keep, name_server),
                name=f"registration at {name_server}",
            )
            for name_server in self._name_servers
        ]

    def announce(self) -> None:
        """Register again immediately, because the topics or the leader have changed."""
        for wake in self._wakes.values():
            wake.set()

    async def close(self) -> None:
        """Close the connections; the name servers notice that."""
        await end_tasks(self._tasks)
        await self._client.close()

    def _connection_lost(self, address: str) -> None:
        self.registered[address] = False
        wake = self._wakes.get(address)
        if wake is not None:
            wake.set()

    async def _keep(self, name_server: str) -> None:
        wake = self._wakes[name_server]
        delay_s = RETRY_FIRST_S
        has_answered = False
        while True:
            wake.clear()
            delay_max_s = await self._register(name_server, has_answered=has_answered)
            self.registered[name_server] = has_answered = not delay_max_s
            if not delay_max_s:
                delay_s = RETRY_FIRST_S
                await wait_for(wake, self._settings.timers.register_ms / 1000)
            else:
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, delay_max_s)

    async def _invoke(self, name_server: str, command: RemotingCommand) -> RemotingCommand:
        if self._signer is None:
            return await self._client.invoke(name_server, command, INVOKE_TIMEOUT_S)
        return await invoke_signed(
            self._client, self._signer, name_server, command, INVOKE_TIMEOUT_S
        )

    async def _encoded(self) -> RemotingCommand:
        """Return the request for the present topics; each turn of the loop does a part of the work, for one name server."""
        async with self._turn:
            await asyncio.sleep(0)
            state, settings = self.state, self._settings
            restored = self._restored.names
            made_of = DataVersion(state.topics_version, state.topics_timestamp), restored
            if self._command is not None and self._command[0] == made_of:
                return self._command[1]
            pieces: list[bytes] = []
            for piece in body_pieces(state):
                pieces.append(piece)
                await asyncio.sleep(0)
            command = registration(
                b"".join(pieces),
                cluster=settings.cluster,
                group=settings.group,
                address=settings.address,
                restored_groups=restored,
            )
            self._command = made_of, command
            return command

    async def _register(self, name_server: str, *, has_answered: bool) -> float:
        """Register; return the longest time to wait before the next try, or 0 if it succeeded.

        *has_answered* tells that the previous attempt succeeded, even if the connection was lost since.
        """
        settings = self._settings
        command = await self._encoded()
        try:
            reply = await self._invoke(name_server, command)
        except RemotingError as error:
            if has_answered:
                _log.warning("name server %s does not answer: %s", name_server, error)
            return RETRY_MAX_S
        except FrameError as error:
            _log.error("this broker cannot be registered until topics are deleted: %s", error)
            return REFUSED_MAX_S
        if reply.code != ResponseCode.SUCCESS:
            _log.error("name server %s refuses this broker: %s", name_server, reply.remark)
            return REFUSED_MAX_S
        self._hear(name_server, reply)
        if not self.registered[name_server]:
            _log.info("registered %s at name server %s", settings.address, name_server)
        return 0.0

    def _hear(self, name_server: str, reply: RemotingCommand) -> None:
        try:
            awaited = RegisterBrokerResponseHeader.from_ext(reply.ext).awaited_groups
        except HeaderError as error:
            _log.error("name server %s sent an invalid answer: %s", name_server, error)
        else:
            self._restored.heard(name_server, awaited)
