"""
Measures the limits of this machine: synced batches of rocksdict, a plain synced file, loopback, frames without a broker.

They are measured in the same run as the peers, and the page shows our share of each. No broker could reach these
limits: for each message a replica does several of these steps, on cores that it shares with two others.
"""

import multiprocessing
import multiprocessing.connection
import os
import random
import socket
import tempfile
import threading
import time
from pathlib import Path

import rocksdict
import uvloop
from bench.layers.remoting import rate as framing_rate
from bench.layers.remoting import serve
from bench.report.figures import Summary
from bench.report.results import Line, Results
from bench.works import Figure, Scale, Work

PEER = "limits"
BODY = 1024
BATCHES = (1, 16, 64, 256)
RATE = Figure("rate", "per second", more_is_better=True)
P50 = Figure("p50_ms", "p50, ms")

ALL = (
    *(
        Work(
            f"limit-rocksdict-{count}",
            f"messages/s in synced batches of {count} messages of 1 KiB with an index entry each, rocksdict",
            "rocksdict",
            (RATE, P50),
            {"count": count},
        )
        for count in BATCHES
    ),
    Work(
        "limit-fdatasync",
        "appends of 4 KiB to one file, each with fdatasync",
        "fdatasync",
        (RATE, P50),
    ),
    Work(
        "limit-loopback",
        "round trips of 1 KiB over loopback TCP, one at a time, two threads",
        "loopback",
        (RATE, P50),
    ),
    Work(
        "limit-framing",
        "frames with 1 KiB answered by our server without a broker behind it, 64 in flight, client in Python",
        "framing",
        (RATE,),
    ),
)


def measure(scale: Scale, number: int, results: Results) -> None:
    """Measure the limits that have no result for this round."""
    kinds = {
        "rocksdict": _rocksdict,
        "fdatasync": _fdatasync,
        "loopback": _loopback,
        "framing": _framing,
    }
    for work in ALL:
        if not results.has(scale.name, PEER, work.name, number):
            found = kinds[work.kind](scale.seconds / 2, work.words.get("count", 1))
            figures: dict[str, float | list[float]] = {"rate": found[0], "p50_ms": found[1]}
            results.add(Line(scale.name, PEER, work.name, number, figures))


def _timed(seconds: float, times: list[float], each: int = 1) -> tuple[float, float]:
    return len(times) * each / seconds, Summary.of(times).median * 1e3


def _rocksdict(seconds: float, count: int) -> tuple[float, float]:
    body = random.Random(1).randbytes(BODY)
    with tempfile.TemporaryDirectory(prefix="bench-limits-") as folder:
        database = rocksdict.Rdict(str(Path(folder) / "db"), rocksdict.Options(raw_mode=True))
        synced = rocksdict.WriteOptions()
        synced.sync = True
        times = []
        offset = 0
        began = time.perf_counter()
        while (start := time.perf_counter()) < began + seconds:
            batch = rocksdict.WriteBatch(raw_mode=True)
            for _ in range(count):
                batch.put(b"m" + offset.to_bytes(8, "big"), body)
                batch.put(b"q" + offset.to_bytes(8, "big"), body[:20])
                offset += 1
            database.write(batch, synced)
            times.append(time.perf_counter() - start)
        elapsed = time.perf_counter() - began
        database.close()
    return _timed(elapsed, times, count)


def _fdatasync(seconds: float, _: int) -> tuple[float, float]:
    data = random.Random(1).randbytes(4096)
    with tempfile.TemporaryFile(prefix="bench-limits-", buffering=0) as file:
        times = []
        began = time.perf_counter()
        while (start := time.perf_counter()) < began + seconds:
            file.write(data)
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - start)
        return _timed(time.perf_counter() - began, times)


def _loopback(seconds: float, _: int) -> tuple[float, float]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        there, _address = server.accept()
        for each in (client, there):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        thread = threading.Thread(target=_echo, args=(there,), daemon=True)
        thread.start()
        data = bytes(BODY)
        times = []
        began = time.perf_counter()
        while (start := time.perf_counter()) < began + seconds:
            client.sendall(data)
            client.recv(BODY, socket.MSG_WAITALL)
            times.append(time.perf_counter() - start)
        elapsed = time.perf_counter() - began
        client.close()
        thread.join()
    return _timed(elapsed, times)


def _echo(there: socket.socket) -> None:
    with there:
        while data := there.recv(BODY, socket.MSG_WAITALL):
            there.sendall(data)


def _framing(seconds: float, _: int) -> tuple[float, float]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    try:
        found = uvloop.run(framing_rate(ours.recv(), 64, BODY, seconds))
    finally:
        process.terminate()
        process.join()
    return found.rate, found.p50_ms
