"""RocksDB: durability, a full disk, a killed process and bounded memory."""

import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from rocksdict import Rdict

from orderlymq_broker.settings import StorageSettings
from orderlymq_broker.store import layout, options
from orderlymq_broker.store.kv import Batch, Family, StoreFailed, StoreFull
from orderlymq_broker.store.options import column_name, database_options, family_options
from orderlymq_broker.store.rocks import (
    RANGE_COUNT_MIN,
    SWEEP_COUNT,
    DirectoryInUse,
    NoReplica,
    RocksStore,
)
from tests.trouble.smalldisk import mounted

BODY = bytes(range(256)) * 4

# Writes tickets without end: ticket n puts key n into two families, every third one without sync,
# and prints n when a synced ticket is committed.
WRITER = """
import sys
from pathlib import Path
from orderlymq_broker.store import layout
from orderlymq_broker.store.kv import Batch, Family
from orderlymq_broker.store.rocks import RocksStore

store = RocksStore(Path(sys.argv[1]), create=True)
number = int(sys.argv[2])
while True:
    batch = Batch()
    key = layout.encode_u64(number)
    batch.put(Family.MESSAGES, key, key * 64)
    batch.put(Family.CONSUME_QUEUE, key, key)
    batch.put(Family.META, b"last", key)
    ticket = store.prepare(batch)
    sync = number % 3 != 0
    store.commit(ticket, sync=sync)
    store.settle(ticket)
    if sync:
        print(number, flush=True)
    number += 1
"""


def put(family: Family, key: bytes, value: bytes) -> Batch:
    batch = Batch()
    batch.put(family, key, value)

    return batch


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RocksStore]:
    opened = RocksStore(tmp_path / "store", create=True)
    yield opened
    opened.close()


def test_a_killed_writer_leaves_every_acknowledged_ticket_and_no_half_one(tmp_path: Path) -> None:
    """Law: after SIGKILL at any moment, the store holds a prefix of the tickets with all that were synced."""
    path = tmp_path / "store"
    chance = random.Random(7)
    expected = 0
    for _ in range(4):
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(expected)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        first = child.stdout.readline()
        threading.Timer(chance.uniform(0.02, 0.3), child.send_signal, [signal.SIGKILL]).start()
        acknowledged = int((first + child.stdout.read()).split("\n")[-2])
        child.wait()
        child.stdout.close()

        store = RocksStore(path)
        last = layout.decode_u64(store.get(Family.META, b"last") or b"")
        numbers = [layout.encode_u64(number) for number in range(last + 1)]
        bodies = store.scan(Family.MESSAGES, b"\x00", b"\xff", limit=1 << 40)
        places = store.scan(Family.CONSUME_QUEUE, b"\x00", b"\xff", limit=1 << 40)
        store.close()

        assert last >= acknowledged
        assert bodies == [(number, number * 64) for number in numbers]
        assert places == [(number, number) for number in numbers]
        expected = last + 1


def test_commits_in_the_writer_thread_never_disturb_reads(store: RocksStore) -> None:
    """Law: while tickets are committed in the writer thread, a reader sees each staged key exactly once."""
    for number in range(300):
        batch = Batch()
        if number >= 100:
            batch.delete_range(
                Family.CONSUME_QUEUE,
                layout.encode_u64(number - 100),
                layout.encode_u64(number - 99),
            )
        batch.put(Family.CONSUME_QUEUE, layout.encode_u64(number), b"place")
        batch.put(Family.MESSAGES, layout.encode_u64(number), BODY)
        ticket = store.prepare(batch)
        writer = threading.Thread(target=store.commit, args=(ticket,), kwargs={"sync": True})
        writer.start()
        while True:
            running = writer.is_alive()
            assert store.get(Family.MESSAGES, layout.encode_u64(number)) == BODY
            tail = store.scan(Family.CONSUME_QUEUE, b"\x00", b"\xff", limit=200)
            assert [key for key, _ in tail] == [
                layout.encode_u64(at) for at in range(max(0, number - 99), number + 1)
            ]
            if not running:
                break
        writer.join()
        store.settle(ticket)


def test_a_scan_backwards_stays_in_its_range(store: RocksStore) -> None:
    """Law: a backward scan of an empty range finds nothing, even if keys lie before it."""
    store.write(put(Family.KEY_INDEX, b"a", b"1"), sync=False)

    assert store.scan(Family.KEY_INDEX, b"b", b"c", limit=1, reverse=True) == []
    store.flush()
    assert store.scan(Family.KEY_INDEX, b"b", b"c", limit=1, reverse=True) == []


def test_what_was_committed_is_there_after_a_restart(tmp_path: Path) -> None:
    """Law: closing the store keeps committed tickets, synced or not; what was only staged is lost."""
    store = RocksStore(tmp_path, create=True)
    store.write(put(Family.TABLES, b"a", b"synced"), sync=True)
    store.write(put(Family.TABLES, b"b", b"not synced"), sync=False)
    store.stage(put(Family.TABLES, b"c", b"staged"))
    store.close()

    store = RocksStore(tmp_path)

    assert store.multi_get(Family.TABLES, [b"a", b"b", b"c"]) == [b"synced", b"not synced", None]
    store.close()


def test_a_second_process_learns_that_the_directory_is_in_use(tmp_path: Path) -> None:
    """Law: a second process cannot open a store that is in use."""
    store = RocksStore(tmp_path, create=True)
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from orderlymq_broker.store.rocks import DirectoryInUse, RocksStore\n"
        "try:\n    RocksStore(Path(sys.argv[1]))\nexcept DirectoryInUse:\n    sys.exit(7)\n"
    )

    other = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    with pytest.raises(DirectoryInUse, match="stop that process first"):
        RocksStore(tmp_path)

    assert other.returncode == 7
    store.close()


def test_a_directory_without_a_store_is_not_made_one_by_reading(tmp_path: Path) -> None:
    """Law: opening a directory without a store fails and creates nothing, unless `create` is given."""
    with pytest.raises(NoReplica):
        RocksStore(tmp_path / "nothing")

    assert not (tmp_path / "nothing").exists()


@pytest.mark.timeout(30)
def test_a_full_disk_refuses_writes_serves_reads_and_recovers(tmp_path: Path) -> None:
    """Law: on a full disk writes fail with StoreFull and reads go on; the same ticket succeeds when there is space."""
    disk = tmp_path / "disk"
    with mounted(disk, mib=90):
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(80 << 20))
        store = RocksStore(disk / "store", create=True)
        number = 0
        while True:
            batch = put(Family.MESSAGES, layout.encode_u64(number), BODY * 64)
            ticket = store.prepare(batch)
            try:
                store.commit(ticket, sync=True)
            except StoreFull:
                break
            store.settle(ticket)
            number += 1
        with pytest.raises(StoreFull):
            store.commit(ticket, sync=True)
        assert store.get(Family.MESSAGES, layout.encode_u64(0)) == BODY * 64
        assert store.disk_ratio() > 0.9
        later = store.prepare(put(Family.TABLES, b"later", b"x"))

        ballast.unlink()
        # RocksDB checks every five seconds whether one memtable would fit again.
        deadline = time.monotonic() + 20
        while True:
            try:
                store.commit(ticket, sync=True)
                break
            except StoreFull:
                assert time.monotonic() < deadline
                time.sleep(0.2)
        store.settle(ticket)
        store.commit(later, sync=True)
        store.settle(later)
        store.close()

        store = RocksStore(disk / "store")
        keys = [key for key, _ in store.scan(Family.MESSAGES, b"\x00", b"\xff", limit=1 << 40)]
        assert keys == [layout.encode_u64(at) for at in range(number + 1)]
        assert store.get(Family.TABLES, b"later") == b"x"
        store.close()


def test_an_io_error_is_a_failed_store(tmp_path: Path) -> None:
    """Law: any error other than a full disk is StoreFailed, because the outcome of the write is unknown."""
    code = (
        "import resource, sys\nfrom pathlib import Path\n"
        "from orderlymq_broker.store.kv import Batch, Family, StoreFailed\n"
        "from orderlymq_broker.store.rocks import RocksStore\n"
        "store = RocksStore(Path(sys.argv[1]), create=True)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "batch = Batch()\nbatch.put(Family.MESSAGES, b'k', bytes(4 << 20))\n"
        "try:\n    store.write(batch, sync=True)\n"
        "except StoreFailed as error:\n    print(error)\n    sys.exit(7)\n"
    )

    child = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], check=False, capture_output=True, text=True
    )

    assert (child.returncode, "File too large" in child.stdout) == (7, True), child.stderr
    assert issubclass(StoreFailed, Exception)
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 1 << 20


def test_dropping_messages_gives_the_files_back(store: RocksStore) -> None:
    """Law: reclaim frees the space of dropped messages and keeps all others."""
    body = random.Random(3).randbytes(8192)
    for start in range(0, 4000, 200):
        batch = Batch()
        for number in range(start, start + 200):
            batch.put(Family.MESSAGES, layout.message_key(number), body)
        store.write(batch, sync=False)
        store.flush()
    before = store.statistics()["table_bytes"]
    batch = Batch()
    batch.drop_messages(layout.message_key(3900))
    store.write(batch, sync=True)

    store.reclaim()

    assert store.multi_get(Family.MESSAGES, [layout.message_key(n) for n in (3899, 3900)]) == [
        None,
        body,
    ]
    assert store.statistics()["table_bytes"] < before / 4


def test_retention_rewrites_nothing_that_is_kept(store: RocksStore) -> None:
    """Law: while messages come and the oldest are dropped, each body is written once and never rewritten."""
    chance, size = random.Random(5), 4096
    floor = 0
    last_of: dict[Path, int] = {}  # Maps a file of bodies to its last message.

    def bodies() -> set[Path]:
        found = set()
        for path in store.path.glob("*.sst"):
            # Small files of other families come and go meanwhile.
            with suppress(FileNotFoundError):
                if path.stat().st_size > 100 * size:
                    found.add(path)
        return found

    for number in range(4000):
        batch = Batch()
        batch.put(Family.MESSAGES, layout.message_key(number), chance.randbytes(size))
        if number >= 1500 and number % 10 == 0:
            floor = number - 1000
            batch.drop_messages(layout.message_key(floor))
        store.write(batch, sync=False)
        if number % 250 == 249:
            store.flush()
            (new,) = bodies() - last_of.keys()
            last_of[new] = number
        if number % 500 == 499:
            store.reclaim()
            assert bodies() == {path for path, last in last_of.items() if last >= floor}


def test_what_was_dropped_stays_hidden(tmp_path: Path) -> None:
    """Law: dropped messages are not found before and after their space is reclaimed and after a restart; later ones are."""
    store = RocksStore(tmp_path, create=True)
    batch = Batch()
    for number in range(10):
        batch.put(Family.MESSAGES, layout.message_key(number), BODY)
    store.write(batch, sync=True)
    batch = Batch()
    batch.drop_messages(layout.message_key(4))
    store.write(batch, sync=True)

    def check(reader: RocksStore, end: int) -> None:
        keys = [layout.message_key(number) for number in range(end)]
        expected = [None] * 4 + [BODY] * (end - 4)
        assert reader.multi_get(Family.MESSAGES, keys) == expected
        assert [reader.get(Family.MESSAGES, key) for key in keys] == expected
        found = reader.scan(Family.MESSAGES, b"", layout.U64_END, limit=100)
        assert [key for key, _ in found] == keys[4:]
        found = reader.scan(Family.MESSAGES, b"", layout.U64_END, limit=100, reverse=True)
        assert [key for key, _ in found] == keys[:3:-1]
        assert reader.scan(Family.MESSAGES, b"", layout.message_key(4), limit=100) == []
        assert reader.read_all(Family.MESSAGES) == end - 4

    check(store, 10)
    store.close()
    store = RocksStore(tmp_path)
    check(store, 10)
    batch = Batch()
    # A tail that is truncated and written again is deleted, not hidden.
    batch.delete_range(Family.MESSAGES, layout.message_key(4), layout.U64_END)
    store.write(batch, sync=True)
    check(store, 4)
    batch = Batch()
    for number in range(4, 12):
        batch.put(Family.MESSAGES, layout.message_key(number), BODY)
    store.write(batch, sync=True)
    store.reclaim()
    check(store, 12)
    store.close()
    store = RocksStore(tmp_path)
    check(store, 12)
    store.close()


def test_a_store_whose_bodies_lie_in_blob_files_is_read_and_reclaimed(tmp_path: Path) -> None:
    """Law: a store of an older release with bodies in blob files can be read and reclaimed."""
    RocksStore(tmp_path, create=True).close()
    families = family_options(StorageSettings(), create=False)
    old = families[column_name(Family.MESSAGES)]
    old.set_enable_blob_files(True)
    old.set_min_blob_size(256)
    database = Rdict(str(tmp_path), database_options(create=False), families)
    messages = database.get_column_family(column_name(Family.MESSAGES))
    for number in range(100):
        messages[layout.message_key(number)] = BODY * 8
    messages.flush()
    del messages  # Holds the database open.
    database.close()
    assert list(tmp_path.glob("*.blob"))

    store = RocksStore(tmp_path)
    batch = Batch()
    batch.put(Family.MESSAGES, layout.message_key(100), BODY * 8)
    store.write(batch, sync=True)
    keys = [layout.message_key(number) for number in range(101)]
    assert store.multi_get(Family.MESSAGES, keys) == [BODY * 8] * 101
    batch = Batch()
    batch.drop_messages(keys[100])
    store.write(batch, sync=True)
    store.reclaim()

    assert store.multi_get(Family.MESSAGES, keys) == [None] * 100 + [BODY * 8]
    assert not list(tmp_path.glob("*.blob"))
    store.close()


@pytest.mark.parametrize("texts", [7, 1_000])
def test_the_index_sweep_visits_all_and_deletes_what_points_below_the_floor(
    store: RocksStore, texts: int
) -> None:
    """Law: one pass of the index sweep deletes exactly the rows of dropped messages, adjacent or not."""
    batch = Batch()
    for number in range(2_000):
        key = layout.index_key(1, layout.IndexKind.KEY, f"order-{number % texts}", number)
        batch.put(Family.KEY_INDEX, key, layout.encode_timestamp(number))
    batch.drop_messages(layout.message_key(1_200))
    store.write(batch, sync=False)

    cursor, steps = store.sweep_index(), 1
    while cursor:
        cursor, steps = store.sweep_index(cursor), steps + 1

    assert steps == 2_000 // SWEEP_COUNT + 1
    left = store.scan(Family.KEY_INDEX, b"\x00", b"\xff", limit=2_001)
    assert sorted(layout.decode_index_key(key)[3] for key, _ in left) == list(range(1_200, 2_000))


def test_the_index_sweep_spares_what_comes_between_dropped_entries(store: RocksStore) -> None:
    """Law: the sweep keeps an index row that is being written between rows that it deletes."""
    numbers = range(2 * RANGE_COUNT_MIN)
    keys = [layout.index_key(1, layout.IndexKind.KEY, f"{number:03}", number) for number in numbers]
    batch, late = Batch(), Batch()
    for key in keys:
        batch.put(Family.KEY_INDEX, key, layout.encode_timestamp(1))
    batch.drop_messages(layout.message_key(len(keys)))
    store.write(batch, sync=False)
    between = layout.index_key(1, layout.IndexKind.KEY, "001x", len(keys))
    late.put(Family.KEY_INDEX, between, layout.encode_timestamp(2))
    ticket = store.prepare(late)

    assert store.sweep_index() == b""
    store.commit(ticket, sync=False)
    store.settle(ticket)

    found = store.scan(Family.KEY_INDEX, b"\x00", b"\xff", limit=len(keys))
    assert found == [(between, layout.encode_timestamp(2))]


def test_an_idle_replica_is_small(tmp_path: Path) -> None:
    """Law: a process with an open store of some data needs less than 120 MiB."""
    store = RocksStore(tmp_path, create=True)
    for start in range(0, 2000, 100):
        batch = Batch()
        for number in range(start, start + 100):
            batch.put(Family.MESSAGES, layout.message_key(number), BODY)
        store.write(batch, sync=False)
    store.close()
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from orderlymq_broker.store.rocks import RocksStore\n"
        "store = RocksStore(Path(sys.argv[1]))\nprint('open', flush=True)\nsys.stdin.read()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdout.readline()

    size = psutil.Process(child.pid).memory_info().rss

    child.communicate(b"")
    assert size < 120 << 20
    assert os.WEXITSTATUS(child.returncode) == 0


def test_a_writer_faster_than_the_flushes_waits_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: if RocksDB refuses a write until a flush ends, the commit waits and succeeds."""
    monkeypatch.setattr(options, "BODY_MEMTABLE_SIZE", 1 << 20)
    store = RocksStore(tmp_path, create=True)
    body = random.Random(5).randbytes(1 << 20)
    for number in range(60):
        store.write(put(Family.MESSAGES, layout.message_key(number), body), sync=False)

    stalls = store.statistics()["write_stalls"]

    assert stalls > 0, "the test is about stalls: make it write faster"
    assert store.multi_get(Family.MESSAGES, [layout.message_key(n) for n in range(60)]) == (
        [body] * 60
    )
    store.close()


@pytest.mark.timeout(20)
def test_a_sync_does_not_stop_other_threads(store: RocksStore) -> None:
    """Law: the event loop runs while the writer thread waits for a sync."""
    batch = Batch()
    for number in range(64):
        batch.put(Family.MESSAGES, layout.message_key(number), BODY * 1024)
    ticket = store.prepare(batch)
    store.commit(ticket, sync=False)  # Copying the batch does stop other threads.
    store.settle(ticket)

    def turns_beside_a_sync() -> tuple[float, int]:
        ticket = store.prepare(put(Family.META, b"k", b"v"))
        writer = threading.Thread(target=store.commit, args=(ticket,), kwargs={"sync": True})
        turns = 0
        began = time.perf_counter()
        writer.start()
        while writer.is_alive():
            turns += 1
        took_s = time.perf_counter() - began
        writer.join()
        store.settle(ticket)
        return took_s, turns

    # A very fast disk shows nothing, and on a busy machine this thread may get no turn.
    assert any(
        took_s < 0.02 or turns > 1000 for took_s, turns in (turns_beside_a_sync() for _ in range(5))
    )


def test_statistics_name_what_metrics_show(store: RocksStore) -> None:
    """Law: the statistics are bytes or counts over the whole store."""
    store.write(put(Family.MESSAGES, b"k", BODY), sync=True)
    store.flush()

    figures = store.statistics()

    assert figures["commits"] == 1
    assert store.size_bytes() > figures["table_bytes"] > len(BODY)
    assert set(figures) == {
        "commits",
        "write_stalls",
        "memtable_bytes",
        "table_bytes",
        "table_reader_bytes",
        "compaction_pending_bytes",
        "block_cache_bytes",
    }


def test_a_store_that_is_being_replaced_has_no_size(store: RocksStore) -> None:
    """Law: while a snapshot replaces the store and its directory is missing, the size is reported as 0."""
    aside = store.path.with_suffix(".aside")
    assert store.size_bytes() > 0

    store.path.rename(aside)
    size = store.size_bytes()
    aside.rename(store.path)

    assert size == 0


def test_a_damaged_first_read_is_a_failed_store_that_is_closed_again(tmp_path: Path) -> None:
    """Law: damage found while the store is opened raises StoreFailed and leaves no lock."""
    store = RocksStore(tmp_path, create=True)
    store.write(put(Family.META, layout.META_DROPPED, bytes(8)), sync=True)
    store.close()
    (table,) = tmp_path.glob("*.sst")
    content = bytearray(table.read_bytes())
    content[8] ^= 1
    table.write_bytes(content)

    for _ in range(2):
        with pytest.raises(StoreFailed, match="block checksum mismatch"):
            RocksStore(tmp_path)
