"""Offset stores: what they remember, and what survives."""

import asyncio
import os
import stat
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest

from orderlymq.connection.identity import make_client_id, parse_name_servers
from orderlymq.connection.instance import ClientInstance
from orderlymq.consumer.group.offsets import (
    NOT_FOUND,
    BrokerOffsets,
    LocalOffsets,
    local_offsets_path,
)
from orderlymq.consumer.push.consumer import Consumer
from orderlymq.consumer.settings import MessageModel
from orderlymq.errors import SettingError
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.remoting.connection import Connection
from tests.client import fakecluster
from tests.client.fakecluster import BROKER, running
from tests.client.inbox import Inbox, fill
from tests.waiting import until

QUEUE = MessageQueue("T", BROKER, 0)


async def test_broker_offsets_are_committed_once_per_change() -> None:
    """Law: persist sends changed offsets only; increase_only keeps the higher one (OFS-06)."""
    async with running(topics={"T": 1}) as cluster:
        instance = ClientInstance(cluster.address)
        await instance.start()
        store = BrokerOffsets(instance, "G")
        assert await store.fetch(QUEUE) == NOT_FOUND

        store.update(QUEUE, 5, epoch=2, increase_only=True)
        store.update(QUEUE, 3, epoch=2, increase_only=True)
        await store.persist([QUEUE])
        await store.persist([QUEUE])
        assert (cluster.offsets["G", "T", 0], cluster.codes().count(15)) == (5, 1)
        store.update(QUEUE, 3, epoch=2, increase_only=False)
        cluster.faults[15] = [fakecluster.refuse(1)]
        await store.persist([QUEUE])
        await store.persist([QUEUE])

        assert await store.fetch(QUEUE) == 3
        store.remove(QUEUE)
        assert store.read(QUEUE) == NOT_FOUND
        await instance.close()


async def test_a_queue_that_is_given_up_is_committed_as_it_was() -> None:
    """Law: an offset given to `persist` or `commit` reaches the broker even if the queue is forgotten before the request
    is sent.
    """
    other = QUEUE._replace(queue_id=1)
    async with running(topics={"T": 2}) as cluster:
        instance = ClientInstance(cluster.address)
        store = BrokerOffsets(instance, "G")
        for queue in (QUEUE, other):
            store.update(queue, 5, epoch=None, increase_only=True)

        commits = asyncio.gather(store.persist([QUEUE]), store.commit(other))
        asyncio.get_running_loop().call_soon(store.remove, QUEUE)
        store.remove(other)
        await commits

        assert [cluster.offsets["G", "T", number] for number in (0, 1)] == [5, 5]
        # Its next holder may move it, so when it comes back nothing is known about it.
        store.update(other, 5, epoch=None, increase_only=True)
        assert store.changed([other]) == [other]
        await instance.close()


async def test_queues_are_committed_side_by_side() -> None:
    """Law: queues are committed in parallel, so that a silent broker costs one time-out and not one for each."""
    queues = [MessageQueue("T", BROKER, number) for number in range(8)]
    held: list[tuple[RemotingCommand, Connection]] = []
    async with running(topics={"T": 8}) as cluster:
        instance = ClientInstance(cluster.address)
        await instance.start()
        store = BrokerOffsets(instance, "G")
        for queue in queues:
            store.update(queue, 5, epoch=2, increase_only=True)
        cluster.faults[15] = [lambda command, conn: held.append((command, conn))] * 8
        persisting = asyncio.create_task(store.persist(queues))

        await until(lambda: len(held) == 8, timeout_s=2)
        for command, conn in held:
            conn.send(command.reply())
        await persisting
        await instance.close()


async def test_local_offsets_survive_in_rocketmqs_file_and_a_torn_file_falls_back(
    tmp_path: Path,
) -> None:
    """Law: local offsets are stored in RocketMQ's file format, atomically;
    a damaged file is replaced by the older copy (BRD-02).
    """
    path = tmp_path / "offsets.json"
    store = LocalOffsets(path)
    await store.load()
    store.update(QUEUE, 7, epoch=None, increase_only=True)
    await store.persist([])
    store.update(QUEUE, 9, epoch=None, increase_only=True)
    await store.persist([])
    again = LocalOffsets(path)
    await again.load()
    text = path.read_bytes()
    path.write_bytes(text[:20])
    torn = LocalOffsets(path)
    await torn.load()

    assert text == (b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:9}}')
    assert await again.fetch(QUEUE) == 9
    assert await torn.fetch(QUEUE) == 7
    assert await LocalOffsets(tmp_path / "none.json").fetch(QUEUE) == NOT_FOUND


async def test_a_file_that_cannot_be_written_is_tried_again_and_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Law: if the offset file cannot be written, it is tried again; a full disk once stopped persisting for good."""
    path, blocked = tmp_path / "offsets.json", tmp_path / "offsets.json.tmp"
    blocked.mkdir()  # The place of the file's draft.
    store, inbox = LocalOffsets(path), Inbox()
    async with running(topics={"T": 1}) as cluster:
        fill(cluster, 3, queues=1)
        async with Consumer(
            "G",
            cluster.address,
            topics="T",
            consume_from="first",
            message_model=MessageModel.BROADCASTING,
            listener=inbox.concurrent,
            offset_store=store,
        ):
            await until(lambda: store.read(QUEUE) == 3)

    assert f"not written to {path}" in caplog.text
    blocked.rmdir()
    await store.persist([])
    again = LocalOffsets(path)
    await again.load()
    assert await again.fetch(QUEUE) == 3


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_disk_that_hangs_holds_up_no_listener_and_mixes_no_offsets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_cancelled: bool
) -> None:
    """Law: a hanging disk delays no listener; in the end the file has the newest offsets,
    and nothing is written needlessly.
    """
    path, fsync = tmp_path / "offsets.json", os.fsync
    synced: list[bool] = []
    goes_on = threading.Event()

    def hang(descriptor: int) -> None:
        synced.append(stat.S_ISDIR(os.fstat(descriptor).st_mode))
        goes_on.wait(60)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", hang)
    store = LocalOffsets(path)
    store.update(QUEUE, 7, epoch=None, increase_only=True)
    first = asyncio.create_task(store.persist([]))
    await until(lambda: bool(synced))
    store.update(QUEUE, 9, epoch=None, increase_only=True)
    if is_cancelled:
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
    second = asyncio.create_task(store.persist([]))
    await asyncio.sleep(0.01)
    assert not second.done()
    goes_on.set()
    await second
    await asyncio.gather(first, return_exceptions=True)
    await store.persist([])

    again = LocalOffsets(path)
    await again.load()
    assert await again.fetch(QUEUE) == 9
    assert synced == [False, True, False, True]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"offsetTable":7}',
        b'{"offsetTable":{"x":1}}',
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:true}}',
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:-5}}',
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:"many"}}',
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:9223372036854775808}}',
    ],
)
async def test_a_damaged_file_without_a_copy_is_named(tmp_path: Path, content: bytes) -> None:
    """Law: a damaged file without a copy is an error that names it; starting at consume_from could skip messages."""
    path = tmp_path / "offsets.json"
    path.write_bytes(content)

    with pytest.raises(SettingError, match=r"offsets\.json .*restore the file, or delete it"):
        await LocalOffsets(path).load()


def test_the_local_file_stands_where_rocketmq_puts_it(tmp_path: Path) -> None:
    """Law: the local offset file is where RocketMQ puts it (OFS-05)."""
    path = local_offsets_path("192.0.2.1@DEFAULT", "G", tmp_path)

    assert path == tmp_path / ".rocketmq_offsets" / "192.0.2.1@DEFAULT" / "G" / "offsets.json"


def test_identities() -> None:
    """Law: client ids are ip@pid#nanos with an optional unit; name server lists are parsed (CLI-01, CLI-04, CFG-C1)."""
    own = make_client_id("192.0.2.1", "", "")

    assert own.startswith("192.0.2.1@")
    assert "#" in own
    assert make_client_id("192.0.2.1", "DEFAULT", "u") == "192.0.2.1@DEFAULT@u"
    assert parse_name_servers("a:1;b:2, c:3") == ("a:1", "b:2", "c:3")


async def test_a_store_of_the_users_own_is_loaded_updated_and_persisted() -> None:
    """Law: a user's own offset store is loaded, updated and persisted, and brokers are not asked for offsets (PSH-09,
    CFG-S23).
    """
    store, inbox = Notebook({QUEUE: 2}), Inbox()
    async with running(topics={"T": 1}, ordered=True) as cluster:
        fill(cluster, 4, queues=1)
        async with Consumer(
            "G",
            cluster.address,
            topics="T",
            ordered=True,
            listener=inbox.ordered,
            offset_store=store,
        ):
            await until(lambda: len(inbox.seen) == 2)

    assert inbox.texts == ["m2", "m3"]
    assert store.said[0] == "load"
    assert (store.remembered[QUEUE], store.kept[QUEUE]) == (4, 4)
    assert not {14, 15} & set(cluster.codes())


class Notebook:
    """A user's offset store."""

    def __init__(self, kept: dict[MessageQueue, int]) -> None:
        self.kept = kept
        self.remembered: dict[MessageQueue, int] = {}
        self.said: list[str] = []

    async def load(self) -> None:
        self.said.append("load")

    def update(
        self, queue: MessageQueue, offset: int, *, epoch: int | None, increase_only: bool
    ) -> None:
        self.said.append("update")
        self.remembered[queue] = offset

    async def fetch(self, queue: MessageQueue) -> int:
        return self.kept.get(queue, 0)

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        self.said.append("persist")
        self.kept |= {queue: self.remembered[queue] for queue in queues if queue in self.remembered}

    def remove(self, queue: MessageQueue) -> None:
        self.said.append("remove")

    def read(self, queue: MessageQueue) -> int:
        return self.remembered.get(queue, -1)
