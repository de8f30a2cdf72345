"""Contents of a restored cluster, and the requests that it refuses: the law of backups."""

import contextlib
import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from orderlymq import Consumer, Producer
from orderlymq.admin.client import AdminClient, QueueLock
from orderlymq.connection.instance import ClientInstance
from orderlymq.errors import BrokerError
from orderlymq.oracle.verdict import Event, Kind, judge
from orderlymq_backup import catalogue
from orderlymq_backup.create import GroupCopy, create
from orderlymq_backup.errors import StorageFailed
from orderlymq_backup.restore import verify
from orderlymq_backup.storage import Folder
from orderlymq_broker.server.backups import CopyLost
from orderlymq_broker.state.restoration import FENCE_STEP
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.header.extensions import EXT_CLIENT_ID, EXT_EPOCH
from orderlymq_testing.cluster import Cluster
from tests.backup.clusters import GROUP, back_up, restore_group

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

KEYS = 6
TOPIC, BILLING = "orders", "billing"


async def send(name_server: str, chance: random.Random, count: int) -> None:
    """Send *count* messages with random keys, each after the former one is stored."""
    async with Producer("shop", name_server) as producer:
        for number in range(count):
            key = str(chance.randrange(KEYS))
            await producer.send(TOPIC, f"{key}:{number}", key=key)


async def consume(name_server: str, count: int) -> None:
    """Consume *count* messages in order and leave."""
    async with Consumer(
        BILLING, name_server, topics=TOPIC, ordered=True, consume_from="first"
    ) as consumer:
        seen = 0
        async for _ in consumer:
            seen += 1
            if seen == count:
                return


async def consume_all(name_server: str) -> None:
    """Consume until the last uncommitted message of every queue was seen."""
    async with AdminClient(name_server) as admin:
        progress = await admin.progress(BILLING, TOPIC)
    done = {queue.queue_id: at.consumer_offset for queue, at in progress.items()}
    ends = {
        int(queue.partition(":")[2]): end for queue, end in (await ends_of(name_server)).items()
    }
    wanted = {(queue, end - 1) for queue, end in ends.items() if done.get(queue, 0) < end}
    async with Consumer(
        BILLING, name_server, topics=TOPIC, ordered=True, consume_from="first"
    ) as consumer:
        async for message in consumer:
            wanted.discard((message.queue.queue_id, message.queue_offset))
            if not wanted:
                return


def in_backup(events: Iterable[Event], ends: dict[str, int]) -> list[Event]:
    """Return the history up to the backup's position, without later sends."""
    acknowledged = {e.message: e for e in events if e.kind is Kind.ACK}
    kept = {message for message, ack in acknowledged.items() if ack.offset < ends.get(ack.queue, 0)}
    return [e for e in events if e.kind not in (Kind.SEND, Kind.ACK) or e.message in kept]


@pytest.mark.parametrize("seed", range(3))
async def test_nothing_is_lost_up_to_the_position_and_the_order_goes_on(
    tmp_path: Path, seed: int
) -> None:
    """Law: no acknowledged send from before the backup is lost, and consumers continue after their committed offsets.

    The oracle finds no violation in the history of the former cluster up to the backup, joined with that of the
    restored one.
    """
    chance = random.Random(seed)
    storage = Folder(tmp_path / "backups")
    replicas = chance.choice((1, 3))
    with Cluster(tmp_path / "former", replicas=replicas) as former:
        former.create_topic(TOPIC, queues=3)
        await send(former.name_server, chance, chance.randrange(40, 120))
        await consume(former.name_server, chance.randrange(1, 30))
        if replicas > 1:
            former.kill_leader()
        before = {e.message for e in former.recording.events if e.kind is Kind.ACK}
        backup = await back_up(former.name_server, storage)
        await send(former.name_server, chance, chance.randrange(1, 40))
        history = list(former.recording.events)
    replicas = chance.choice((1, 3))
    restore_group(storage, backup.parts[0], tmp_path / "new", replicas)
    with Cluster(tmp_path / "new", replicas=replicas) as new:
        ends = await ends_of(new.name_server)
        known = in_backup(history, ends)
        await send(new.name_server, chance, 30)
        await consume_all(new.name_server)
        new.verdict()
        together = sorted([*known, *new.recording.events], key=lambda event: event.at)

    assert before <= {e.message for e in known if e.kind is Kind.ACK}
    assert judge(together).findings == ()


async def test_a_holder_of_before_is_refused(tmp_path: Path) -> None:
    """Law: a lock of the former cluster has no effect in the new one, where all epochs are higher.

    Its former holder can neither commit nor keep the next holder from the queue.
    """
    storage = Folder(tmp_path / "backups")
    with Cluster(tmp_path / "former") as former:
        former.create_topic(TOPIC, queues=1)
        await send(former.name_server, random.Random(1), 3)
        async with Consumer(
            BILLING, former.name_server, topics=TOPIC, ordered=True, consume_from="first"
        ) as consumer:
            await anext(aiter(consumer))
            async with AdminClient(former.name_server) as admin:
                old = await _lock(admin)
            backup = await back_up(former.name_server, storage)
    restore_group(storage, backup.parts[0], tmp_path / "new")
    with Cluster(tmp_path / "new") as new:
        async with AdminClient(new.name_server) as admin:
            free, members = await admin.locks(BILLING), await _members(admin)
            refused = await _commit(admin.instance, (await admin.brokers())[GROUP], old)
            async with Consumer(BILLING, new.name_server, topics=TOPIC, ordered=True) as consumer:
                first = await anext(aiter(consumer))
                lock = await _lock(admin)

    assert (free, members) == ({}, {})
    assert "is not locked; lock it" in refused
    assert lock.epoch > old.epoch + FENCE_STEP - 1
    assert first.queue_offset == 0


async def _lock(admin: AdminClient) -> QueueLock:
    (lock,) = (each for queue, each in (await admin.locks(BILLING)).items() if queue.topic == TOPIC)
    return lock


async def _members(admin: AdminClient) -> object:
    try:
        return await admin.members(BILLING)
    except BrokerError as error:
        if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
            raise
        return {}


async def _commit(instance: ClientInstance, address: str, lock: QueueLock) -> str:
    """Commit as a former holder does; return the reason of the refusal."""
    ext = {
        "consumerGroup": BILLING,
        "topic": TOPIC,
        "queueId": "0",
        "commitOffset": "2",
        EXT_EPOCH: str(lock.epoch),
        EXT_CLIENT_ID: lock.client_id,
    }
    try:
        await instance.call(address, RequestCode.UPDATE_CONSUMER_OFFSET, ext)
    except BrokerError as error:
        return error.remark
    return "accepted"


async def test_a_second_backup_reads_only_what_is_new(tmp_path: Path) -> None:
    """Law: tables that are in an earlier backup are not read again, and both backups can be restored."""
    storage = Folder(tmp_path / "backups")
    with Cluster(tmp_path / "former") as former:
        former.create_topic(TOPIC)
        async with Producer("shop", former.name_server) as producer:
            for _ in range(64):
                await producer.send(TOPIC, random.Random(2).randbytes(32 << 10), key="k")
        first = await back_up(former.name_server, storage)
        await send(former.name_server, random.Random(3), 10)
        second = await back_up(former.name_server, storage)
    for backup in (first, second):
        verify(storage, backup, tmp_path)

    assert first.new_bytes == first.size_bytes > 2 << 20
    assert second.size_bytes > first.size_bytes
    assert second.new_bytes < 1 << 20


async def test_a_leader_that_changes_while_it_is_read_is_copied_again(tmp_path: Path) -> None:
    """Law: if the leader changes during the copy, the backup is still complete and has all earlier acknowledged messages."""
    storage = Folder(tmp_path / "backups")
    told: list[str] = []
    with Cluster(tmp_path / "former", replicas=3) as former:
        former.create_topic(TOPIC)
        await send(former.name_server, random.Random(4), 10)

        def tell(text: str) -> None:
            told.append(text)
            if len(told) == 1:
                former.kill_leader()

        async with AdminClient(former.name_server) as admin:
            backup = await create(admin, storage, tell)
    verify(storage, backup, tmp_path)

    assert any(text.endswith("copying again") for text in told), told
    assert backup.parts[0].index > 10


async def test_a_refusal_is_not_tried_again(tmp_path: Path) -> None:
    """Law: a refusal that another attempt would only repeat ends the backup, with the broker's own text."""
    told: list[str] = []
    with Cluster(tmp_path / "former") as cluster:
        cluster.create_topic(TOPIC)
        async with AdminClient(cluster.name_server) as admin:
            address = (await admin.brokers())[GROUP]
            group = await GroupCopy.begin(admin.instance, GROUP, address)
            with pytest.raises(BrokerError, match="is running"):
                await create(admin, Folder(tmp_path / "backups"), told.append)
            await group.close()

    assert told == []


async def test_a_copy_that_is_read_keeps_others_away_and_ends_with_its_reader(
    tmp_path: Path,
) -> None:
    """Law: a broker makes one copy at a time; pieces come from the copy's own files and are bounded; the end deletes it."""
    with Cluster(tmp_path / "former") as cluster:
        cluster.create_topic(TOPIC)
        async with AdminClient(cluster.name_server) as admin:
            address = (await admin.brokers())[GROUP]
            group = await GroupCopy.begin(admin.instance, GROUP, address)
            file = max(group.copy.files, key=lambda each: each.size)
            good = {"session": group.copy.session, "file": file.name, "offset": "0", "size": "1"}
            told = [await _refusal(admin.instance, address, RequestCode.ORDERLYMQ_BACKUP_BEGIN, {})]
            for change in (
                {"file": "../../identity.json"},
                {"file": "LOCK"},
                {"size": str((1 << 20) + 1)},
                {"size": "0"},
                {"size": "x"},
                {"offset": "-1"},
                {"offset": str(file.size)},
                {"session": "other"},
            ):
                ext = {**good, **change}
                told.append(
                    await _refusal(admin.instance, address, RequestCode.ORDERLYMQ_BACKUP_READ, ext)
                )
            served = await _refusal(
                admin.instance, address, RequestCode.ORDERLYMQ_BACKUP_READ, good
            )
            await group.close()
            told.append(
                await _refusal(admin.instance, address, RequestCode.ORDERLYMQ_BACKUP_READ, good)
            )

    reasons = (
        "is running",
        "no file",
        "no file",
        "1048576",
        "at most",
        "at most",
        "at most",
        "has",
        "no longer exists",
        "no longer exists",
    )
    assert served == ""
    for reason, remark in zip(reasons, told, strict=True):
        assert reason in remark


async def test_a_topic_that_grew_behind_a_copy_lets_all_be_copied_again(tmp_path: Path) -> None:
    """Law: another group may have been copied after the growth, so all are copied again; earlier growth is always included."""
    with Cluster(tmp_path / "former") as cluster:
        cluster.create_topic(TOPIC, queues=2)
        async with AdminClient(cluster.name_server) as admin:
            address = (await admin.brokers())[GROUP]
            group = await GroupCopy.begin(admin.instance, GROUP, address)
            await group.confirm()
            list_of = {"topic": TOPIC, "attempt": "1", "total": "4", "queues": "4"}
            for step in (
                {"action": "fence", "limitMillis": "60000"},
                {"action": "switch"},
                {"action": "publish", "settleMillis": "1"},
            ):
                code = RequestCode.ORDERLYMQ_CHANGE_QUEUES
                await admin.instance.call(address, code, {**list_of, **step})
            with pytest.raises(BrokerError, match="has grown") as lost:
                await group.confirm()
            await group.close()

    assert lost.value.code == CopyLost.code


async def _refusal(
    instance: ClientInstance, address: str, code: RequestCode, ext: dict[str, str]
) -> str:
    try:
        await instance.call(address, code, ext)
    except BrokerError as error:
        return error.remark
    return ""


async def ends_of(name_server: str) -> dict[str, int]:
    """Return the end of each queue, by its name in histories."""
    async with AdminClient(name_server) as admin:
        route = await admin.route(TOPIC)
        return {
            f"{queue.broker_name}:{queue.queue_id}": await admin.max_offset(queue)
            for queue in route.subscribe
        }


class Failing(Folder):
    """A folder that is full after a number of files."""

    def __init__(self, path: Path, files: int) -> None:
        super().__init__(path)
        self._files = files

    def put(self, key: str, path: Path) -> None:
        self._files -= 1
        if self._files < 0:
            raise StorageFailed("no space left on the device")
        super().put(key, path)


async def test_an_interrupted_backup_does_not_exist(tmp_path: Path) -> None:
    """Law: an interrupted backup does not count and leaves nothing unfinished, and the next one is complete."""
    place = tmp_path / "backups"
    with Cluster(tmp_path / "former") as former:
        former.create_topic(TOPIC)
        await send(former.name_server, random.Random(4), 4)
        files = 0
        while not catalogue.ids(Folder(place)):
            with contextlib.suppress(StorageFailed):
                await back_up(former.name_server, Failing(place, files))
            assert list(Folder(place).list("running")) == []
            files += 4
        whole = await back_up(former.name_server, Folder(place))

    assert files > 8
    verify(Folder(place), whole, tmp_path)
