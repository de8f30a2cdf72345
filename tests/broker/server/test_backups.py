"""Copies for backups: the pace at which they are read, and how long they stay."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from orderlymq_broker.server.backups import (
    IDLE_MAX_S,
    OUTGOING,
    BackupRequests,
    Copy,
    Pace,
)
from orderlymq_broker.server.router import Line, Router
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
    """Law: pieces that are asked for at the same time follow each other, and a pause is no credit."""
    pace = Pace(rate=100)

    assert [pace.wait_s(50, 10.0) for _ in range(3)] == [0.0, 0.5, 1.0]
    assert [pace.wait_s(50, 99.0) for _ in range(2)] == [0.0, 0.5]


class World:
    """A replica's store and state, and a client that asks for copies; time stands still until it is set."""

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
        self.folder = folder
        self.answers: asyncio.Queue[RemotingCommand] = asyncio.Queue()
        self._handlers: dict[int, Callable[[Line, RemotingCommand], None]] = {}
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
        """As an instance that has nothing staged."""

    async def ask(self, code: RequestCode, **ext: str) -> RemotingCommand:
        line = SimpleNamespace(send=self.answers.put_nowait)
        self._handlers[code](cast("Line", line), request(code, ext))
        return await self.answers.get()

    async def begin(self) -> Copy:
        answer = await self.ask(RequestCode.ORDERLYMQ_BACKUP_BEGIN)
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
    """Law: each read keeps it for a while; then its links go, and another copy can be made."""
    copy = await world.begin()
    for _ in range(3):
        world.now_s += IDLE_MAX_S
        world.requests.step()
        assert await world.read(copy) is None
    refused = (await world.ask(RequestCode.ORDERLYMQ_BACKUP_BEGIN)).remark or ""
    world.now_s += IDLE_MAX_S + 1
    world.requests.step()
    late = await world.read(copy) or ""
    again = await world.begin()

    assert (copy.index, copy.term, copy.node) == (7, 2, again.node)
    assert "under way" in refused
    assert "not here any more" in late
    assert await world.read(again) is None


async def test_a_lost_copy_is_distinguished_from_a_refusal(world: World) -> None:
    """Law: who asks may try again after the code 14 alone: the replica leads no more, or the copy is gone."""
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
    """Law: who cannot say what was acknowledged makes no copy; phases of several groups belong together."""
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
    assert "orders grows now" in grows
