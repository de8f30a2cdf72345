"""Copies for backups: how fast they are read, and how long they stay."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from orderlymq_broker.core.capacity import is_nearly_full
from orderlymq_broker.core.livesettings import LIVE
from orderlymq_broker.server.backups import (
    IDLE_MAX_S,
    OUTGOING,
    UNCHANGED,
    BackupRequests,
    Copy,
    CopyLost,
    Pace,
)
from orderlymq_broker.server.router import ClientConnection, Router
from orderlymq_broker.state.broker import BrokerState
from orderlymq_broker.state.topics.expansionrecords import ExpansionPhase
from orderlymq_broker.state.topics.expansiontable import Expansion
from orderlymq_broker.store.kv import Batch, Family
from orderlymq_broker.store.layout import (
    META_APPLIED,
    META_COMPACTED,
    META_MEMBERSHIP,
    Applied,
    Compaction,
    encode_applied,
    encode_compaction,
)
from orderlymq_broker.store.rocks import RocksStore
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_raft import Membership
from orderlymq_raft.types import NodeId
from tests.broker.processors.driver import settings
from tests.broker.store.memory import MemoryStore


def test_the_pace_never_passes_its_rate() -> None:
    """Law: concurrent reads wait for each other at the rate; a pause gives no credit."""
    pace = Pace(rate=100)

    assert [pace.wait_s(50, 10.0) for _ in range(3)] == [0.0, 0.5, 1.0]
    assert [pace.wait_s(50, 99.0) for _ in range(2)] == [0.0, 0.5]


class World:
    """A replica's store and state, and a client that asks for copies; time is set by the test."""

    def __init__(self, folder: Path) -> None:
        self.now_s = 0.0
        self.state = BrokerState(MemoryStore())
        self.store = RocksStore(folder / "store", create=True)
        batch = Batch()
        batch.put(Family.META, META_APPLIED, encode_applied(Applied(7, 2, 0, 0)))
        batch.put(Family.META, META_COMPACTED, encode_compaction(Compaction(7, 2)))
        batch.put(Family.META, META_MEMBERSHIP, Membership(frozenset({NodeId(1)})).encode())
        self.store.write(batch, sync=True)
        self.leads = True
        self.core: Any = SimpleNamespace(context=SimpleNamespace(settings=settings()))
        self.disk = asyncio.Event()
        self.disk.set()
        self.folder = folder
        self._handlers: dict[int, Callable[[ClientConnection, RemotingCommand], None]] = {}
        clients = SimpleNamespace(
            intercept=lambda code, handler, *, of_replica: self._handlers.update({code: handler})
        )
        self.requests = BackupRequests(
            cast("Router", clients),
            msgspec.structs.replace(settings(), data_dir=folder),
            cast("Any", lambda: self if self.leads else None),
            lambda: self.now_s,
        )

    async def write_staged(self) -> None:
        """Write as an instance without staged data does; a test can make its disk slow."""
        await self.disk.wait()

    async def ask(self, code: RequestCode, **ext: str) -> RemotingCommand:
        answer: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
        connection = SimpleNamespace(send=answer.set_result)
        self._handlers[code](cast("ClientConnection", connection), request(code, ext))
        return await answer

    async def begin(self, **ext: str) -> Copy:
        answer = await self.ask(RequestCode.ORDERLYMQ_BACKUP_BEGIN, **ext)
        assert answer.code == 0, answer.remark
        return msgspec.json.decode(answer.body, type=Copy)

    async def read(self, copy: Copy) -> str | None:
        ext = {"session": copy.session, "file": "CURRENT", "offset": "0", "size": "1"}
        return (await self.ask(RequestCode.ORDERLYMQ_BACKUP_READ, **ext)).remark

    def copies(self) -> int:
        return sum(1 for _ in (self.folder / OUTGOING).glob("*"))


@pytest.fixture
async def world(tmp_path: Path) -> Any:
    made = World(tmp_path)
    yield made
    await made.requests.close()
    made.store.close()
    assert made.copies() == 0


async def test_a_copy_goes_when_nobody_reads_it(world: World) -> None:
    """Law: each read keeps a copy for a while; then it is deleted and another can be made."""
    copy = await world.begin()
    for _ in range(3):
        world.now_s += IDLE_MAX_S
        world.requests.step(is_disk_full=False)
        assert await world.read(copy) is None
    refused = (await world.ask(RequestCode.ORDERLYMQ_BACKUP_BEGIN)).remark or ""
    world.now_s += IDLE_MAX_S + 1
    world.requests.step(is_disk_full=False)
    late = await world.read(copy) or ""
    again = await world.begin()

    assert (copy.index, copy.term, copy.node) == (7, 2, again.node)
    assert "is running" in refused
    assert "no longer exists" in late
    assert await world.read(again) is None


async def test_a_copy_goes_before_sends_would_be_refused(world: World) -> None:
    """Law: when the disk is nearly full, the copy is deleted and no new one is made,
    because it keeps retention from freeing space.
    """
    copy = await world.begin()
    world.requests.step(is_disk_full=False)
    kept = await world.read(copy)
    world.requests.step(is_disk_full=True)
    piece = {"session": copy.session, "file": "CURRENT", "offset": "0", "size": "1"}
    refused = await world.ask(RequestCode.ORDERLYMQ_BACKUP_READ, **piece)

    while world.copies():  # noqa: ASYNC110 - a thread deletes it
        await asyncio.sleep(0)
    assert kept is None
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "nearly full" in (refused.remark or "")


async def test_the_room_for_a_copy_is_judged_by_the_settings_of_the_moment(world: World) -> None:
    """Law: free space is judged by the present settings, which an administrator may have changed."""
    mark = settings().storage.disk_resume_ratio
    context = world.core.context
    judged = [is_nearly_full(context, ratio) for ratio in (mark - 0.01, mark)]
    context.settings = LIVE["diskMaxUsedSpaceRatio"].change(context.settings, 0)
    refused = await world.ask(RequestCode.ORDERLYMQ_BACKUP_BEGIN)

    assert mark < settings().storage.disk_refuse_ratio
    assert judged == [False, True]
    assert "nearly full" in (refused.remark or "")


async def test_a_table_goes_when_it_was_read(world: World) -> None:
    """Law: a table file is deleted after it was read; small files stay until the copy ends."""
    copy = await world.begin()
    tables = {file.name: file.size for file in copy.files if file.name.endswith(".sst")}
    (folder,) = (world.folder / OUTGOING).iterdir()

    async def read(name: str, offset: int, size: int) -> int:
        ext = {"session": copy.session, "file": name, "offset": str(offset), "size": str(size)}
        return (await world.ask(RequestCode.ORDERLYMQ_BACKUP_READ, **ext)).code

    name, size = tables.popitem()
    assert await read(name, 1, size - 1) == 0
    half = (folder / name).exists()
    assert await read(name, 0, 1) == 0
    whole = (folder / name).exists()
    for _ in range(copy_size(copy, "CURRENT") + 1):
        assert await read("CURRENT", 0, 1) == 0

    assert (half, whole) == (True, False)
    assert {each.name for each in folder.iterdir()} >= {"CURRENT", *tables}
    assert await read(name, 0, 1) == CopyLost.code


async def test_who_got_no_answer_gets_its_copy_when_it_asks_again(world: World) -> None:
    """Law: a client that asks again while the copy is being made gets that copy; only another backup is refused."""
    world.disk.clear()
    asked = [asyncio.create_task(world.begin(backupId="monday")) for _ in range(2)]
    await asyncio.sleep(0)
    other = await world.ask(RequestCode.ORDERLYMQ_BACKUP_BEGIN, backupId="tuesday")
    world.disk.set()
    first, second = [await each for each in asked]
    third = await world.begin(backupId="monday")
    assert await world.read(third) is None
    again = await world.begin(backupId="monday")
    late = await world.ask(RequestCode.ORDERLYMQ_BACKUP_BEGIN, backupId="tuesday")

    assert first == second == third
    assert again.session != first.session
    assert [each.code for each in (other, late)] == [ResponseCode.SYSTEM_ERROR] * 2


async def test_a_copy_of_a_former_queue_list_is_lost(world: World) -> None:
    """Law: a copy made before a topic grew is lost, because the copies of all broker groups must have the same queue list."""
    copy = await world.begin()
    piece = {"session": copy.session, "file": "CURRENT", "offset": "0", "size": "1"}
    asked = {**piece, UNCHANGED: "true"}
    before = (await world.ask(RequestCode.ORDERLYMQ_BACKUP_READ, **asked)).code
    world.state.expansions.by_topic["orders"] = Expansion("orders", total=4)
    grown = await world.ask(RequestCode.ORDERLYMQ_BACKUP_READ, **asked)
    later = (await world.ask(RequestCode.ORDERLYMQ_BACKUP_READ, **piece)).code
    world.state.expansions.by_topic.clear()
    world.leads = False
    unknown = await world.ask(RequestCode.ORDERLYMQ_BACKUP_READ, **asked)

    assert (before, later) == (0, 0)
    assert [grown.code, unknown.code] == [CopyLost.code] * 2
    assert "has grown" in (grown.remark or "")


def copy_size(copy: Copy, name: str) -> int:
    return next(file.size for file in copy.files if file.name == name)


async def test_a_lost_copy_is_distinguished_from_a_refusal(world: World) -> None:
    """Law: code 14 means that the copy or the leadership is lost and the client may try again; other refusals have code 1."""
    world.leads = False
    follower = await world.ask(RequestCode.ORDERLYMQ_BACKUP_BEGIN)
    world.leads = True
    copy = await world.begin()
    again = await world.ask(RequestCode.ORDERLYMQ_BACKUP_BEGIN)
    piece = {"file": "CURRENT", "offset": "0", "size": "1"}
    gone = await world.ask(RequestCode.ORDERLYMQ_BACKUP_READ, session="other", **piece)
    wrong = {**piece, "session": copy.session, "file": "LOCK"}
    unknown = await world.ask(RequestCode.ORDERLYMQ_BACKUP_READ, **wrong)

    assert [follower.code, gone.code] == [ResponseCode.SERVICE_NOT_AVAILABLE] * 2
    assert [again.code, unknown.code] == [ResponseCode.SYSTEM_ERROR] * 2


async def test_only_a_leader_copies_and_never_while_a_topic_grows(world: World) -> None:
    """Law: only a leader makes a copy, and not while a topic grows."""
    growing = Expansion("orders", ExpansionPhase.SWITCHED, total=4)
    world.leads = False
    follower = (await world.ask(RequestCode.ORDERLYMQ_BACKUP_BEGIN)).remark or ""
    world.leads = True
    world.state.expansions.by_topic["orders"] = growing
    grows = (await world.ask(RequestCode.ORDERLYMQ_BACKUP_BEGIN)).remark or ""
    world.state.expansions.by_topic["orders"] = msgspec.structs.replace(
        growing, phase=ExpansionPhase.OPEN
    )
    await world.begin()

    assert "does not lead" in follower
    assert "orders is growing" in grows
