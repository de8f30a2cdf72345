"""Gaps between the write-ahead logs of a store; RocksDB would open such a store without an error."""

import os
import random
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from orderlymq_broker.store.kv import Batch, Family, StoreFailed
from orderlymq_broker.store.layout import encode_u64
from orderlymq_broker.store.rocks import RocksStore
from orderlymq_broker.store.writeaheadlog import refuse_gap

BLOCK, HEADER = 32 << 10, 7
FAMILIES = (Family.RAFT_LOG, Family.MESSAGES, Family.TABLES, Family.CONSUME_QUEUE)


def write(store: RocksStore, chance: random.Random, count: int) -> None:
    """Write some batches, some larger than a block of the log, and sometimes flush a family."""
    for number in range(count):
        batch = Batch()
        batch.put(Family.META, b"number", encode_u64(number))
        for family in chance.sample(FAMILIES, chance.randrange(1, 5)):
            size = chance.choice([1, 100, 40_000, 200_000]) if chance.random() < 0.3 else 20
            batch.put(family, encode_u64(number), os.urandom(size))
        if chance.random() < 0.2:
            batch.delete_range(Family.RAFT_LOG, encode_u64(0), encode_u64(number // 2))
        store.write(batch, sync=chance.random() < 0.1)
        if chance.random() < 0.1:
            flush(store, chance.choice(FAMILIES))


def flush(store: RocksStore, family: Family) -> None:
    """Write a family to a file, as if its memtable were full: a new log begins, and META needs the old one."""
    store._columns[list(Family).index(family)].flush()


def logs_of(store: Path) -> list[Path]:
    return sorted(store.glob("*.log"))


def test_a_store_that_is_killed_again_and_again_has_no_gap(tmp_path: Path) -> None:
    """Law: a store of a killed process opens again, even if the newest log was cut at its end."""
    path, chance, several = tmp_path / "store", random.Random(5), 0
    code = (
        "import os, random, sys\nfrom pathlib import Path\nfrom orderlymq_broker.store.rocks import RocksStore\n"
        "from tests.broker.store.test_writeaheadlog import write\nchance = random.Random(sys.argv[2])\n"
        "for _ in range(chance.randrange(1, 4)):\n"
        "    store = RocksStore(Path(sys.argv[1]), create=True)\n    write(store, chance, chance.randrange(1, 60))\n"
        "    if chance.random() < 0.5:\n        os._exit(9)\n    store.close()\n"
    )
    for session in range(4):
        command = [sys.executable, "-c", code, str(path), str(session)]
        assert subprocess.run(command, check=False).returncode in (0, 9)
        refuse_gap(path)
        several += len(logs_of(path)) > 1
        newest = logs_of(path)[-1]
        os.truncate(newest, chance.randrange(newest.stat().st_size + 1))
        refuse_gap(path)
    assert several


@pytest.mark.parametrize("seed", range(4))
def test_a_log_that_is_cut_short_or_gone_is_refused(tmp_path: Path, seed: int) -> None:
    """Law: a log other than the newest that is short or missing is refused, and nothing is changed."""
    chance = random.Random(seed)
    store = RocksStore(tmp_path / "store", create=True)
    for _ in range(3):
        write(store, chance, 15)
        flush(store, Family.MESSAGES)
    write(store, chance, 5)
    left = tmp_path / "left"
    left.mkdir()
    # Tables come and go meanwhile.
    for path in [tmp_path / "store" / "CURRENT", *logs_of(tmp_path / "store")]:
        shutil.copy(path, left)
    store.close()
    *older, _ = logs_of(left)
    cut = chance.choice(older)
    if cut != older[0] and chance.random() < 0.5:
        cut.unlink()
    else:
        os.truncate(cut, chance.randrange(20, cut.stat().st_size))
    before = {path.name: path.read_bytes() for path in left.iterdir()}

    with pytest.raises(StoreFailed, match=r"the write-ahead log \d+.log ends before write \d+ and"):
        RocksStore(left)

    assert {path.name: path.read_bytes() for path in left.iterdir()} == before


def framed(*batches: bytes) -> bytes:
    """Return a log of these batches, with records cut at block ends."""
    log = bytearray()
    for batch in batches:
        left, is_first = batch, True
        while left or is_first:
            room = BLOCK - len(log) % BLOCK
            if room < HEADER:
                log += bytes(room)
                continue
            part, left = left[: room - HEADER], left[room - HEADER :]
            kind = 1 + 3 * (not is_first) if not left else 2 + (not is_first)
            log += struct.pack("<IHB", 0, len(part), kind) + part
            is_first = False
    return bytes(log)


@pytest.mark.parametrize("room", range(HEADER, HEADER + 13))
def test_a_batch_is_known_wherever_a_block_ends(tmp_path: Path, room: int) -> None:
    """Law: a batch's number and count are read even if they lie in two blocks;
    the check once missed a gap behind such a batch.
    """
    filler = struct.pack("<QI", 1, 4) + bytes(BLOCK - HEADER - 12 - room)
    last = struct.pack("<QI", 5, 3) + bytes(100)
    (tmp_path / "000004.log").write_bytes(framed(filler, last))
    newer = tmp_path / "000008.log"

    newer.write_bytes(framed(struct.pack("<QI", 8, 1) + bytes(20)))
    refuse_gap(tmp_path)

    newer.write_bytes(framed(struct.pack("<QI", 9, 1) + bytes(20)))
    with pytest.raises(StoreFailed, match=r"before write 8 and 000008\.log begins with 9"):
        refuse_gap(tmp_path)
