"""
Measure the store alone: synced batches per second, and pulls from flushed files.

    python bench/layers/store.py [--directory DIR] [--seconds 2]

One batch is what a replication turn writes: the raft entry's head, the messages, one consume
queue entry per message and the applied index, in one synced ticket.
"""

import argparse
import random
import resource
import shutil
import statistics
import struct
import tempfile
import time
from pathlib import Path

from orderlymq_broker.store import layout
from orderlymq_broker.store.kv import Batch, Family
from orderlymq_broker.store.layout import QueueEntry
from orderlymq_broker.store.rocks import RocksStore

BODY_SIZE = 1024
MESSAGE_SIZE = BODY_SIZE + 170  # a stored record of this body with usual properties
QUEUES = 8
PULL_SIZE = 32


class Filler:
    """A writer of turns with *count* messages each that remembers where the messages are."""

    def __init__(self, store: RocksStore) -> None:
        self.store = store
        self.body = random.Random(1).randbytes(MESSAGE_SIZE)
        self.physical = 0
        self.index = 0
        self.offsets = [0] * QUEUES

    def turn(self, count: int) -> None:
        """Write *count* messages with their index entries in one synced ticket."""
        batch = Batch()
        for _ in range(count):
            queue = random.randrange(QUEUES)
            batch.put(Family.MESSAGES, layout.encode_u64(self.physical), self.body)
            batch.put(
                Family.CONSUME_QUEUE,
                layout.queue_key(1, queue, self.offsets[queue]),
                layout.encode_queue_entry(QueueEntry(self.physical, MESSAGE_SIZE, 7, self.index)),
            )
            self.offsets[queue] += 1
            self.physical += MESSAGE_SIZE
        self.index += 1
        batch.put(Family.RAFT_LOG, layout.log_key(self.index), bytes(40 + 30 * count))
        batch.put(Family.META, layout.META_APPLIED, struct.pack(">QQ", self.index, 1))
        self.store.write(batch, sync=True)


def measure_writes(filler: Filler, count: int, seconds: float) -> None:
    end = time.perf_counter() + seconds
    times = []
    while (begin := time.perf_counter()) < end:
        filler.turn(count)
        times.append(time.perf_counter() - begin)
    rate = len(times) / sum(times)
    print(
        f"synced batches of {count:3} messages: {rate:8.0f}/s {rate * count:8.0f} messages/s   "
        f"p50 {statistics.median(times) * 1e3:.2f} ms  p99 {sorted(times)[len(times) * 99 // 100] * 1e3:.2f} ms"
    )


def measure_pulls(filler: Filler, rounds: int) -> None:
    store = filler.store
    times = []
    for _ in range(rounds):
        queue = random.randrange(QUEUES)
        offset = random.randrange(filler.offsets[queue] - PULL_SIZE)
        start = layout.queue_key(1, queue, offset)
        end = layout.queue_bounds(1, queue)[1]
        begin = time.perf_counter()
        pairs = store.scan(Family.CONSUME_QUEUE, start, end, limit=PULL_SIZE)
        places = [layout.decode_queue_entry(value).physical for _, value in pairs]
        found = store.multi_get(Family.MESSAGES, [layout.encode_u64(p) for p in places])
        times.append(time.perf_counter() - begin)
        assert len(found) == PULL_SIZE
        assert all(found)
    print(
        f"pull of {PULL_SIZE} messages from {store.size_bytes() >> 20} MiB of files: "
        f"p50 {statistics.median(times) * 1e6:.0f} us  p99 {sorted(times)[rounds * 99 // 100] * 1e6:.0f} us"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, default=None)
    parser.add_argument("--seconds", type=float, default=2.0)
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="orderlymq-bench-", dir=arguments.directory))
    try:
        store = RocksStore(directory, create=True)
        filler = Filler(store)
        for count in (1, 16, 64, 256):
            measure_writes(filler, count, arguments.seconds)
        store.flush()
        measure_pulls(filler, 2000)
        figures = store.statistics()
        print({name: round(value / 2**20, 1) for name, value in figures.items() if "bytes" in name})
        written = filler.physical / 2**20
        print(f"message bytes written: {written:.0f} MiB")
        _print_compaction(directory)
        begin = time.perf_counter()
        floor = layout.encode_u64(filler.physical * 9 // 10)
        batch = Batch()
        batch.drop_messages(floor)
        store.write(batch, sync=True)
        store.reclaim()
        print(
            f"dropping nine tenths: {time.perf_counter() - begin:.2f} s, "
            f"{store.size_bytes() >> 20} MiB left"
        )
        print(f"peak RSS {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB")
        store.close()
    finally:
        shutil.rmtree(directory)


def _print_compaction(directory: Path) -> None:
    log = (directory / "LOG").read_text()
    compactions = log.count('"event": "compaction_finished"')
    moved = log.count("Moved #") + log.count("trivial_move")
    print(f"compactions {compactions}, trivial moves {moved}")


if __name__ == "__main__":
    main()
