"""A snapshot is sent over real sockets, completely or not at all, and the receiver's store stays until then."""

import asyncio
import errno
import logging
import os
import shutil
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from orderlymq_broker.replication import snapshotframes, snapshots
from orderlymq_broker.replication.snapshots import (
    INCOMING,
    OUTGOING,
    SnapshotReceiver,
    SnapshotSender,
)
from orderlymq_broker.replication.transport.connection import FrameConnection
from orderlymq_broker.replication.transport.handshake import Identity
from orderlymq_broker.replication.transport.links import dial
from orderlymq_broker.replication.transport.server import Transport
from orderlymq_broker.server.status import replica_reports
from orderlymq_broker.settings import Address
from orderlymq_broker.state.broker import BrokerState
from orderlymq_broker.state.statemachine import StateMachine
from orderlymq_broker.store.kv import Batch, Family, StoreError
from orderlymq_broker.store.options import MEMTABLES_SIZE_MAX
from orderlymq_broker.store.raftlog import RaftLogStore
from orderlymq_broker.store.rocks import RocksStore
from orderlymq_broker.store.snapshot import Manifest
from orderlymq_raft import (
    Entry,
    EntryKind,
    InstallSnapshot,
    Membership,
    ProgressState,
    SnapshotMeta,
    Status,
)
from orderlymq_raft.ready import PeerStatus
from orderlymq_raft.types import HardState, Index, NodeId, Role, Term
from tests.ports import free_ports

KEY = bytes(32)
MEMBERS = Membership(frozenset({NodeId(1), NodeId(2)}))


class Receiving:
    """A replica that receives snapshots."""

    def __init__(self, directory: Path) -> None:
        self.address = Address("127.0.0.1", free_ports(1)[0])
        self.delivered: list[InstallSnapshot] = []
        self.arrived = asyncio.Event()
        self.adopts = True
        self.callers: asyncio.Queue[NodeId] = asyncio.Queue()
        self.receiver = SnapshotReceiver(NodeId(2), directory, self._deliver)
        identity = Identity("C", "g", NodeId(2), self.address, KEY)
        self.transport = Transport(identity, self)  # type: ignore[arg-type] # no raft comes here

    def _deliver(self, message: InstallSnapshot, directory: Path) -> bool:
        self.delivered.append(message)
        self.arrived.set()
        return self.adopts

    def snapshot_caller(self, node: NodeId, connection: FrameConnection) -> None:
        self.receiver.accept(node, connection)
        self.callers.put_nowait(node)


class Sending:
    """A replica with a state to send."""

    def __init__(self, directory: Path, payload: bytes) -> None:
        self.store = RocksStore(directory / "store", create=True)
        log = RaftLogStore(self.store, 1 << 20)
        machine = StateMachine(BrokerState(self.store))
        batch = Batch()
        log.set_membership(batch, MEMBERS)
        log.append(batch, [Entry(Term(1), Index(1), b"", EntryKind.NOOP)], HardState(Term(1)))
        machine.apply_noop(1, 1, batch)
        for number in range(100):
            batch.put(Family.KEY_INDEX, b"filler%04d" % number, payload)
        self.store.write(batch, sync=True)
        self.reports: list[tuple[int, bool]] = []
        self.reported = asyncio.Event()
        identity = Identity("C", "g", NodeId(1), Address("127.0.0.1", 1), KEY)
        self.failures: list[StoreError] = []
        self.sender = SnapshotSender(
            identity,
            self.store,
            directory,
            self._report,
            chunk_size=4096,
            failed=self.failures.append,
        )

    def _report(self, node: NodeId, ok: bool) -> None:
        self.reports.append((node, ok))
        self.reported.set()

    def begin(self, address: Address) -> None:
        meta = SnapshotMeta(Index(1), Term(1), MEMBERS)
        self.reported.clear()
        self.sender.send(InstallSnapshot(NodeId(1), NodeId(2), Term(1), meta), address)

    async def send(self, address: Address) -> None:
        self.begin(address)
        async with asyncio.timeout(10.0):
            await self.reported.wait()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a sender report failures soon."""
    monkeypatch.setattr(snapshots, "RETRY_FIRST_S", 0.01)


@pytest.fixture
async def receiving(tmp_path: Path) -> AsyncIterator[Receiving]:
    made = Receiving(tmp_path / "two")
    await made.transport.listen(made.address)
    yield made
    await made.transport.close()
    await made.receiver.close()


@pytest.fixture
async def sending(tmp_path: Path) -> AsyncIterator[Sending]:
    made = Sending(tmp_path / "one", bytes(range(256)) * 20)
    yield made
    await made.sender.close()
    made.store.close()


async def test_a_state_arrives_whole(sending: Sending, receiving: Receiving) -> None:
    """Law: the receiver is notified only when all files have arrived, and they can be opened."""
    await sending.send(receiving.address)
    await receiving.arrived.wait()

    assert sending.reports == [(2, True)]
    assert [(m.meta.index, m.term) for m in receiving.delivered] == [(1, 1)]
    copy = RocksStore(receiving.receiver.directory, read_only=True)
    assert copy.get(Family.KEY_INDEX, b"filler0049") == bytes(range(256)) * 20
    assert RaftLogStore(copy, 0).initial_state()[1] == MEMBERS
    copy.close()
    assert sending.sender.index_needed is None


async def test_the_sender_knows_the_last_state_that_a_peer_took_over(
    sending: Sending, receiving: Receiving
) -> None:
    """Law: the sender knows of each peer's last installed snapshot its index, size and time;
    one that did not arrive does not count.
    """
    spoil(sending, number=3)
    await sending.send(receiving.address)
    assert sending.sender.sent == {}

    began = time.monotonic()
    await sending.send(receiving.address)

    taken = sending.sender.sent[NodeId(2)]
    assert (taken.index, began <= taken.at_s <= time.monotonic()) == (1, True)
    files = [each for each in receiving.receiver.directory.iterdir() if each.is_file()]
    assert taken.size_bytes == sum(each.stat().st_size for each in files)


def reported(sending: Sending, state: ProgressState) -> Any:
    """Return what the leader's status shows about snapshots for node 2."""
    one, index = NodeId(1), Index(1)
    peer = PeerStatus(Index(0), index, state, is_alive=True)
    status = Status(
        one, Role.LEADER, Term(1), one, index, index, index, MEMBERS, None, {NodeId(2): peer}
    )
    report: Any = replica_reports(status, sending.sender)["2"]
    return report["snapshot_failure"]


async def test_the_leader_reports_what_keeps_a_replica_from_its_snapshot(
    sending: Sending, receiving: Receiving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: the leader reports why a replica gets no snapshot, since when and how often, until it has one or needs none."""
    assert reported(sending, ProgressState.SNAPSHOT) is None
    usage = shutil.disk_usage(tmp_path)
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1_000))
        for _ in range(2):
            await sending.send(receiving.address)

    failure = reported(sending, ProgressState.PROBE)
    assert ("1000 are free: enlarge the disk" in failure["reason"], failure["tries"]) == (True, 2)
    assert failure["since_ms"] >= 10, "the first failure counts"
    assert reported(sending, ProgressState.REPLICATE) is None

    await sending.send(receiving.address)
    assert reported(sending, ProgressState.SNAPSHOT) is None


async def test_nobody_there_is_a_failure_that_is_reported(sending: Sending) -> None:
    """Law: raft gets the outcome of each transfer, also if the peer is away."""
    await sending.send(Address("127.0.0.1", free_ports(1)[0]))

    assert sending.reports == [(2, False)]


async def test_failures_that_follow_each_other_are_reported_ever_later(
    sending: Sending, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: repeated failures are reported to raft with growing pauses, because each try costs the leader a checkpoint."""
    monkeypatch.setattr(snapshots, "RETRY_FIRST_S", 0.05)
    monkeypatch.setattr(snapshots, "RETRY_MAX_S", 0.2)
    nobody = Address("127.0.0.1", free_ports(1)[0])
    lasted: list[float] = []
    async with asyncio.timeout(40.0):  # Without a limit the last pause alone would take longer.
        for _ in range(12):
            began = time.monotonic()
            await sending.send(nobody)
            lasted.append(time.monotonic() - began)

    assert all(each >= pause for each, pause in zip(lasted, [0.05, 0.1, 0.2, 0.2], strict=False))
    assert sending.reports == [(2, False)] * 12


async def test_a_damaged_chunk_is_refused_and_the_next_try_sends_only_what_is_missing(
    sending: Sending,
    receiving: Receiving,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Law: a damaged chunk fails the transfer; the next try sends only the missing files."""
    caplog.set_level(logging.INFO)
    spoil(sending, number=3)
    await sending.send(receiving.address)
    assert sending.reports == [(2, False)]
    assert receiving.delivered == []

    sending.reports.clear()
    await sending.send(receiving.address)
    await receiving.arrived.wait()

    assert sending.reports == [(2, True)]
    assert "damaged in transit" in caplog.text


async def test_a_state_that_has_no_room_is_refused_before_it_is_written(
    sending: Sending,
    receiving: Receiving,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Law: a snapshot without enough free disk is refused before anything is written; both logs ask for more disk."""
    written: list[Path] = []
    monkeypatch.setattr(snapshots, "_write_at", lambda path, *_: written.append(path))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1_000))

    await sending.send(receiving.address)

    assert sending.reports == [(2, False)]
    assert written == []
    assert not receiving.receiver.directory.exists()
    assert caplog.text.count("1000 are free: enlarge the disk, or stop this replica and empty") == 2


async def test_a_state_that_leaves_no_room_for_the_end_of_the_store_is_refused(
    sending: Sending, receiving: Receiving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: free disk must also cover the memtables that the store in use still writes."""
    usage = shutil.disk_usage(tmp_path)
    free = MEMTABLES_SIZE_MAX
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=free))

    await sending.send(receiving.address)

    assert sending.reports == [(2, False)]


async def test_a_state_that_fills_the_disk_is_deleted(
    sending: Sending, receiving: Receiving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: if the disk fills up during a transfer, the received files are deleted."""
    write, room = snapshots._write_at, 20_000

    def write_at(path: Path, offset: int, data: bytes) -> None:
        nonlocal room
        room -= len(data)
        if room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, offset, data)

    monkeypatch.setattr(snapshots, "_write_at", write_at)

    await sending.send(receiving.address)
    await receiving.receiver.close()

    assert sending.reports == [(2, False)]
    assert not receiving.receiver.directory.exists()


async def test_a_state_that_is_not_adopted_is_deleted(
    sending: Sending, receiving: Receiving
) -> None:
    """Law: received files that are not installed, because the log has caught up, are deleted."""
    receiving.adopts = False
    await sending.send(receiving.address)
    await receiving.arrived.wait()
    await receiving.receiver.close()

    assert not receiving.receiver.directory.exists()


def test_what_a_crash_left_of_a_state_is_deleted(tmp_path: Path) -> None:
    """Law: files of a transfer that a crash interrupted are deleted at the start."""
    left = tmp_path / INCOMING
    left.mkdir()
    (left / "000007.sst").touch()

    SnapshotReceiver(NodeId(2), tmp_path, lambda *_: True)

    assert not left.exists()


@pytest.mark.parametrize("where", ["sender", "receiver"])
async def test_a_byte_that_rotted_does_not_travel(
    sending: Sending, receiving: Receiving, where: str
) -> None:
    """Law: all values of a copy are read before it counts.

    A sender with damage on its own disk ends; damage on the way leads to another try.
    """
    sending.store.flush()
    if where == "sender":
        table = max(sending.store.path.glob("*.sst"), key=lambda path: path.stat().st_size)
        rot(table)
    else:
        take = receiving.receiver._finish
        fired: list[bool] = []

        def finish(manifest: Manifest, advanced: Callable[[], None]) -> None:
            if not fired:
                tables = receiving.receiver.directory.glob("*.sst")
                rot(max(tables, key=lambda path: path.stat().st_size))
                fired.append(True)
            take(manifest, advanced)

        receiving.receiver._finish = finish  # type: ignore[method-assign] # the disk's part

    await sending.send(receiving.address)

    assert sending.reports == [(2, False)]
    assert receiving.delivered == []
    assert len(sending.failures) == (where == "sender")
    if where == "receiver":
        await sending.send(receiving.address)
        await receiving.arrived.wait()
        assert sending.reports == [(2, False), (2, True)]


def rot(path: Path) -> None:
    """Flip one bit in the middle of a file, where the values are."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def spoil(sending: Sending, *, number: int) -> None:
    """Let the chunk with this number arrive once with a flipped bit."""
    original = FrameConnection.send
    count = 0

    def send(self: FrameConnection, pieces: Sequence[bytes]) -> None:
        nonlocal count
        if len(pieces) == 2 and len(pieces[1]) > 100:
            count += 1
            if count == number:
                FrameConnection.send = original  # type: ignore[method-assign] # once
                damaged = bytes([pieces[1][0] ^ 1]) + pieces[1][1:]
                original(self, [pieces[0], damaged])
                return
        original(self, pieces)

    FrameConnection.send = send  # type: ignore[method-assign] # the network's part


async def test_a_replica_knows_up_to_where_the_state_goes_that_it_takes_in(
    sending: Sending, receiving: Receiving
) -> None:
    """Law: takes_in names the index of the snapshot from its offer until it is installed, and 0 after a refusal."""
    shown: list[int] = []
    prepare = receiving.receiver._prepare

    def noted(offer: Any) -> tuple[int, ...]:
        shown.append(receiving.receiver.takes_in)
        return prepare(offer)

    receiving.receiver._prepare = noted  # type: ignore[method-assign]
    assert receiving.receiver.offered == 0
    for adopts in (False, True):
        receiving.adopts = adopts
        receiving.arrived.clear()
        shown.append(receiving.receiver.takes_in)
        await sending.send(receiving.address)
        await receiving.arrived.wait()
        await receiving.receiver.close()
        shown.append(receiving.receiver.takes_in)

    assert shown == [0, 1, 0, 0, 1, 1]
    assert receiving.receiver.offered == 1


async def test_a_newer_offer_ends_an_older_one(
    sending: Sending, receiving: Receiving, tmp_path: Path
) -> None:
    """Law: a newer offer replaces an older one, so that a receiver does not wait for a dead sender."""
    silent = await dial(
        Identity("C", "g", NodeId(3), Address("127.0.0.1", 1), KEY),
        NodeId(2),
        receiving.address,
        "snapshot",
    )

    await sending.send(receiving.address)
    await receiving.arrived.wait()

    assert sending.reports == [(2, True)]
    silent.close()


async def test_a_state_that_is_verified_is_delivered_whatever_its_sender_does(
    sending: Sending, receiving: Receiving
) -> None:
    """Law: a verified snapshot is delivered even if its sender has given up;
    verifying may take longer than a sender waits.
    """
    begun, go_on = threading.Semaphore(0), threading.Event()
    take = receiving.receiver._finish

    def finish(manifest: Manifest, advanced: Callable[[], None]) -> None:
        begun.release()
        go_on.wait(10.0)
        take(manifest, advanced)

    receiving.receiver._finish = finish  # type: ignore[method-assign] # a slow disk's part
    sending.begin(receiving.address)
    await receiving.callers.get()
    assert await asyncio.to_thread(begun.acquire, timeout=10.0)
    await sending.sender.close()

    sending.begin(receiving.address)
    await receiving.callers.get()
    go_on.set()
    async with asyncio.timeout(10.0):
        await receiving.arrived.wait()
        await sending.reported.wait()

    assert not begun.acquire(blocking=False)
    assert len(receiving.delivered) == 1
    assert sending.reports == [(2, False)], "raft asks again, should it still need a state"
    RocksStore(receiving.receiver.directory, read_only=True).close()


async def test_a_sender_waits_as_long_as_its_state_is_verified(
    sending: Sending, receiving: Receiving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: a sender waits as long as the receiver makes progress in verifying."""
    # The same holds for every other wait of both ends, such as that for a sync of the disk.
    monkeypatch.setattr(snapshotframes, "ANSWER_TIMEOUT_S", 2.0)
    monkeypatch.setattr(snapshots, "ANSWER_TIMEOUT_S", 2.0)
    monkeypatch.setattr(snapshotframes, "PROGRESS_EVERY_S", 0.1)
    take = receiving.receiver._finish

    def finish(manifest: Manifest, advanced: Callable[[], None]) -> None:
        for _ in range(12):
            time.sleep(0.5)  # Three times as long as a sender waits for a sign of life.
            advanced()
        take(manifest, advanced)

    receiving.receiver._finish = finish  # type: ignore[method-assign] # a slow disk's part

    await sending.send(receiving.address)

    assert sending.reports == [(2, True)]


async def test_what_is_taken_over_is_on_the_disk(
    sending: Sending, receiving: Receiving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: all files are synced before they replace the store; a sync during the exchange would silence the replica."""
    synced: set[int] = set()
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    left: list[str] = []

    def deliver(message: InstallSnapshot, directory: Path) -> bool:
        left.extend(path.name for path in directory.iterdir() if path.stat().st_ino not in synced)
        return True

    receiving.receiver._deliver = deliver

    await sending.send(receiving.address)

    assert sending.reports == [(2, True)]
    assert left == []


async def test_who_is_followed_by_another_while_it_waits_is_disconnected(
    sending: Sending, receiving: Receiving
) -> None:
    """Law: a sender whose offer was replaced by another is disconnected, even if an earlier one is still being prepared."""
    begun, go_on = threading.Event(), threading.Event()
    prepare = receiving.receiver._prepare

    def hang(offer: snapshotframes.Offer) -> tuple[int, ...]:
        begun.set()
        go_on.wait(10.0)
        return prepare(offer)

    receiving.receiver._prepare = hang  # type: ignore[method-assign] # a slow disk's part
    sending.begin(receiving.address)
    assert await asyncio.to_thread(begun.wait, 10.0)
    caller = Identity("C", "g", NodeId(1), Address("127.0.0.1", 1), KEY)
    second = await dial(caller, NodeId(2), receiving.address, "snapshot")
    third = await dial(caller, NodeId(2), receiving.address, "snapshot")

    go_on.set()
    async with asyncio.timeout(10.0):
        await second.closed

    assert third.is_open
    third.close()


@pytest.mark.parametrize("number", [-1, 99])
async def test_a_receiver_that_wants_what_was_not_offered_is_refused(
    sending: Sending, receiving: Receiving, number: int
) -> None:
    """Law: a request for something that was not offered fails the transfer, and the next try comes after a pause."""
    receiving.receiver._prepare = lambda offer: (number,)  # type: ignore[method-assign]

    await sending.send(receiving.address)

    assert sending.reports == [(2, False)]
    assert "not offered" in sending.sender.failures[NodeId(2)].reason


async def test_a_receiver_that_hangs_does_not_keep_the_sender(tmp_path: Path) -> None:
    """Law: at its end a sender gives up a hanging receiver and leaves no thread in the store."""
    sending = Sending(tmp_path, b"x")
    with socket.create_server(("127.0.0.1", 0)) as hole:
        meta = SnapshotMeta(Index(1), Term(1), MEMBERS)
        message = InstallSnapshot(NodeId(1), NodeId(2), Term(1), meta)
        sending.sender.send(message, Address(*hole.getsockname()))
        await asyncio.sleep(0)

        await sending.sender.close()

    sending.store.close()
    assert sending.reports == []
    assert not (tmp_path / OUTGOING).exists()
