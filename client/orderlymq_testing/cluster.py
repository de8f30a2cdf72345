"""
A real cluster in this process: a name server and the replicas of one broker group, on an event loop of their own.

Rules: every method may be called from any thread, also while an event loop runs there. It returns when its work is
done. All servers listen on loopback, on free ports. Data is not synced to disk, because a test has no power cut.
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from orderlymq.admin.client import AdminClient
from orderlymq.blocking import LoopThread
from orderlymq.consumer.group.queuereader import QueueReader
from orderlymq.durations import Duration, seconds
from orderlymq.errors import BrokerError, OrderlyMQError, SettingError, StateError
from orderlymq.message import ReceivedMessage
from orderlymq.observers import install
from orderlymq.oracle.verdict import Defect, Kind, Verdict, judge
from orderlymq_broker.settings import Address, BrokerSettings, RaftSettings, StorageSettings
from orderlymq_nameserver.app import NameServer
from orderlymq_nameserver.settings import NameServerSettings
from orderlymq_protocol.body.lanes import BY_KEY
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.names import dlq_topic
from orderlymq_runtime.process.supervisor import end_tasks
from orderlymq_runtime.security.clustersecret import new_cluster_secret
from orderlymq_runtime.settingsfile import ServerAddress
from orderlymq_testing.faults import Delay, Replica
from orderlymq_testing.history import Recording

T = TypeVar("T")

START_TIMEOUT_S: Final = 20.0
_LOOK_S: Final = 0.003
_HOST: Final = "127.0.0.1"
# An election takes tens of milliseconds, because all replicas are in one process.
_RAFT: Final = RaftSettings(tick_ms=10, heartbeat_ms=20, election_ms=80)
_STORAGE: Final = StorageSettings(
    flush="ASYNC_FLUSH", tail_cache_size=8 << 20, block_cache_size=8 << 20
)
_SLOW: Final = {
    "send": (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE),
    "pull": (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE),
    "lock": (RequestCode.LOCK_BATCH_MQ,),
    "commit": (RequestCode.UPDATE_CONSUMER_OFFSET,),
    "fetch": (RequestCode.ORDERLYMQ_FETCH_LANES,),
    "complete": (RequestCode.ORDERLYMQ_COMPLETE_LANES,),
}


class Cluster:
    """A cluster of one broker group; use `with`, or `start` and `close`. Names include a namespace: `shop%orders`.

    Attributes:
        name_server: address of the name server, ``host:port``, for clients.

    Args:
        directory: directory for the data, empty at the start.
        replicas: 1 is ready soonest; with 3, another replica is elected when the leader is killed.

    Raises:
        SettingError: The number of replicas is not above 0.
    """

    def __init__(self, directory: Path, *, replicas: int = 1) -> None:
        if not isinstance(replicas, int) or replicas < 1:
            raise SettingError(
                f"replicas is {replicas!r}; give 1, or 3 for a cluster that survives the loss of one"
            )
        self.name_server = ""
        self.recording = Recording()
        self._directory = directory
        self._thread = LoopThread("orderlymq cluster")
        self._replicas: dict[int, tuple[Replica, asyncio.Task[int]]] = {}
        self._settings: dict[int, BrokerSettings] = {}
        self._delays: list[Delay] = []
        self._count = replicas
        self._killing = asyncio.Lock()
        self._server: NameServer | None = None
        self._forget: Callable[[], None] | None = None

    # -- life

    def start(self) -> None:
        """Start all servers; return when the broker group serves clients."""
        self._thread.run(self._start())
        self._forget = install(self.recording)

    def close(self) -> None:
        """Stop all servers and remove the observer."""
        if self._forget is not None:
            self._forget()
            self._forget = None
        try:
            self._thread.run(self._close())
        finally:
            self.recording.end()
            self._thread.close()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- topics

    def create_topic(self, name: str, *, queues: int = 4, ordered: bool = True) -> None:
        """Create a topic; return when clients can send to it."""

        async def create(admin: AdminClient) -> None:
            deadline = time.monotonic() + START_TIMEOUT_S
            while True:
                try:
                    await admin.create_topic(name, queues=queues, ordered=ordered)
                    return
                except BrokerError as error:
                    # If the machine was stalled, the leader may have lost its lease for a moment.
                    if "does not lead" not in error.remark or time.monotonic() > deadline:
                        raise
                await asyncio.sleep(_LOOK_S)

        self._administer(create)

    # -- faults

    @property
    def leader(self) -> int | None:
        """The number of the replica that serves clients, None if no replica does."""
        return next((node for node, (each, _) in self._replicas.items() if each.serves), None)

    def kill_leader(self) -> int:
        """Kill the leader without a clean shutdown and start it again; return its number.

        With three replicas, another one leads when this call returns. With one, clients wait until it is back.
        """
        return self._call(self._kill_leader())

    def expire_locks(self, group: str) -> int:
        """End every queue lock of an ordered consumer group, and by key every lane in hand, as if the holders had died.

        The holder is not notified. It notices with its next pull or renewal. By key, the message in hand counts one
        more try.

        Returns:
            The number of locks and lanes that were held.
        """

        async def expire(admin: AdminClient) -> int:
            holders = [each.client_id for each in (await admin.locks(group)).values()]
            count = len(holders)
            config = (await admin.groups()).get(group)
            if config is not None and config.concurrency == BY_KEY:
                table = await admin.lanes(group)
                count += sum(each.in_hand for each in table.queues)
                # A broker names only some of the lanes, those in trouble first.
                holders += [*await admin.members(group), *(each.holder for each in table.lanes)]
            for client_id in set(filter(None, holders)):
                for address in (await admin.brokers()).values():
                    await admin.client_dead(address, client_id, "expired by the test")
            return count

        self.recording.note(Kind.FAULT, detail=f"locks of {group} expired")
        return self._administer(expire)

    def delay(self, what: str, by: Duration, *, times: int = 1) -> None:
        """Serve the next requests of a kind late: `send`, `pull`, `lock`, `commit`, or by key `fetch`, `complete`.

        Raises:
            SettingError: The kind is another, or the time is negative, or the number is less than 1.
        """
        codes, wait_s = _SLOW.get(what), float(seconds(by))
        if codes is None:
            raise SettingError(f"{what!r} cannot be delayed; choose one of {', '.join(_SLOW)}")
        if wait_s < 0:
            raise SettingError(f"by is {wait_s} s; give 0 or more")
        if times < 1:
            raise SettingError(f"times is {times}; give 1 or more")
        self.recording.note(Kind.FAULT, detail=f"{what} delayed by {wait_s} s")
        self._delays.append(Delay(codes, wait_s, times))

    # -- verdict

    def verdict(self) -> Verdict:
        """Read every topic that was sent to, and the dead letters, and judge the whole history.

        `not_judged` of the verdict names what remains open: messages with a delivery time that have not arrived,
        messages that were deleted with their topic, and messages whose send was not observed, such as those of
        transactions, one-way sends and other processes.
        """
        ordered = self._administer(self._read_topics)
        verdict = judge(self.recording.own)
        # Topics without order keep every copy of a repeated send.
        findings = tuple(
            found
            for found in verdict.findings
            if found.defect is not Defect.DUPLICATED or found.evidence[0].topic in ordered
        )
        not_judged = (*verdict.not_judged, *self.recording.not_judged)
        return replace(verdict, findings=findings, not_judged=not_judged)

    def assert_kept(self) -> None:
        """Fail unless the order was kept and no message that was acknowledged in a topic is lost.

        Raises:
            AssertionError: The promise was broken; the text has the findings, and the shortest history that shows each.
        """
        verdict = self.verdict()
        shown = [
            f"{found.defect}: {found.explanation}\n    " + "\n    ".join(found.lines())
            for found in verdict.findings
        ]
        unread = [each for each in verdict.not_judged if each.startswith("loss in topic ")]
        shown += [f"not judged: {each}" for each in unread]
        if shown:
            raise AssertionError("the oracle found:\n" + "\n".join(shown))

    # -- parts

    async def _start(self) -> None:
        ports = iter(_free_ports(2 + 2 * self._count))
        settings = NameServerSettings(listen=ServerAddress(_HOST, next(ports)))
        server = NameServer(settings, is_new=False)  # the cluster is new, so no broker comes back
        await server.start()
        self._server = server
        self.name_server = str(server.address)
        peers = {node: Address(_HOST, next(ports)) for node in range(1, self._count + 1)}
        address = Address(_HOST, next(ports))
        self.recording.begin(address.host, address.port)
        secret = new_cluster_secret().encode()  # the replicas authenticate each other with it
        for node in peers:
            self._settings[node] = BrokerSettings(
                cluster="test",
                group="broker-a",
                node_id=node,
                peers=peers,
                address=address,
                http=Address(_HOST, next(ports)),
                data_dir=self._directory / f"replica-{node}",
                name_servers=[Address(_HOST, server.address.port)],
                raft=_RAFT,
                storage=_STORAGE,
                cluster_secret=secret,
            )
            self._run(node)
        await self._ready()

    def _run(self, node: int) -> None:
        replica = Replica(self._settings[node], self._delays, self.recording)
        self._replicas[node] = replica, asyncio.create_task(replica.run(), name=f"replica {node}")

    async def _ready(self) -> int:
        """Return the leader once a client would be served; raise if a replica ends before that."""
        end_s = time.monotonic() + START_TIMEOUT_S
        async with AdminClient(self.name_server) as admin:
            while time.monotonic() < end_s:
                for _, task in self._replicas.values():
                    if task.done():
                        raise AssertionError(
                            f"a replica ended: {task.exception() or task.result()}"
                        )
                with contextlib.suppress(OrderlyMQError):
                    for address in (await admin.brokers()).values():
                        await admin.group_status(address)
                        if leader := self.leader:
                            return leader
                await asyncio.sleep(_LOOK_S)
        raise AssertionError(f"no broker served clients within {START_TIMEOUT_S} s")

    async def _kill_leader(self) -> int:
        async with self._killing:
            node = await self._ready()
            self.recording.note(Kind.FAULT, detail="leader killed")
            replica, task = self._replicas[node]
            replica.crash()
            await asyncio.wait([task])
            self._run(node)
            await self._ready()
            return node

    async def _close(self) -> None:
        await end_tasks(task for _, task in self._replicas.values())
        if self._server is not None:
            await self._server.close()

    def _administer(self, work: Callable[[AdminClient], Awaitable[T]]) -> T:
        async def do() -> T:
            async with AdminClient(self.name_server) as admin:
                return await work(admin)

        return self._call(do())

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        if not self.name_server:
            work.close()
            raise StateError("start the cluster first, or use `with`")
        return self._thread.run(work)

    async def _read_topics(self, admin: AdminClient) -> set[str]:
        """Record the messages of the topics; return the ordered topics."""
        # Ask the broker, because a client waits for a missing route, which may still appear.
        stored = await admin.topic_configs()
        for topic in self.recording.topics:
            if topic in stored:
                async for queue, message in _messages(admin, topic):
                    self.recording.stored(queue, message)
            detail = "" if topic in stored else "no broker has the topic any more"
            self.recording.note(Kind.SCANNED, topic=topic, detail=detail)
        for group in self.recording.groups:
            if dlq_topic(group) in stored:
                async for _, letter in _messages(admin, dlq_topic(group)):
                    self.recording.dead(group, letter.message_id)
        return {
            topic for topic, by_group in stored.items() if any(c.order for c in by_group.values())
        }


async def _messages(
    admin: AdminClient, topic: str
) -> AsyncIterator[tuple[MessageQueue, ReceivedMessage]]:
    """Yield all messages of a topic, each with its queue."""
    reader = QueueReader(admin.instance, "orderlymq-testing")
    route = await admin.route(topic)
    for queue in route.subscribe:
        begin, end = await reader.min_offset(queue), await reader.max_offset(queue)
        async for message in reader.messages(queue, begin, end):
            yield queue, message


def _free_ports(count: int) -> list[int]:
    """Return ports that are free now; all are held until the last is found."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((_HOST, 0))
        return [int(each.getsockname()[1]) for each in sockets]
