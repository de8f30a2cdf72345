"""
Profiles of the time spent: flame graphs of leader, follower and the SDK's consumer under each load; ``make profile``.

``python -m bench.profiles [--only send-64-1024 ...] [--seconds 10] [--native] [--raw] [--directory build/profiles]``
starts our own cluster, puts it to one work after the other, and lets py-spy look into the processes meanwhile.
"""

import argparse
import fnmatch
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from bench.compare import PORTS, running
from bench.execution import Running, fill
from bench.peers.nodes import Node, Ports
from bench.peers.ours import OrderlyMQ
from bench.works import FULL, QUEUES, WORKS

from bench import fetch

LOADS = (
    "send-1-1024",
    "send-16-1024",
    "send-64-1024",
    "send-256-1024",
    "batch-16",
    "drain",
    "both",
)
#: Samples per second and thread: enough for a picture in ten seconds, too few to slow down the profiled process.
RATE = 250
WARM_S = 2.0


class Spies:
    """The py-spy processes of one load."""

    def __init__(self, given: argparse.Namespace, load: str) -> None:
        self._given = given
        self._load = load
        self._spies: list[subprocess.Popen[bytes]] = []

    def look(self, processes: Mapping[str, int]) -> None:
        """Profile processes, by name, for the requested time."""
        program = shutil.which("py-spy", path=str(Path(sys.executable).parent))
        if program is None:
            sys.exit("py-spy is not installed: make profile installs it")
        for name, pid in processes.items():
            suffix, kind = ("txt", "raw") if self._given.raw else ("svg", "flamegraph")
            path = self._given.directory / f"{self._load}-{name}.{suffix}"
            command = [program, "record", "--pid", str(pid), "--duration", str(self._given.seconds)]
            command += [
                "--rate",
                str(RATE),
                "--format",
                kind,
                "--output",
                str(path),
            ]
            # C frames can only be read from a paused process.
            command += ["--threads", "--native" if self._given.native else "--nonblocking"]
            self._spies.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
            print(path)

    def wait(self) -> None:
        """Wait until all profiles are written."""
        for spy in self._spies:
            spy.wait(self._given.seconds + 60)


def profile(started: Running, load: str, given: argparse.Namespace) -> None:
    """Run one load on the cluster and profile it."""
    place, _ = started.leader(started.topic("sends"))
    nodes = started.peer.nodes
    processes = {"leader": nodes[place].pid, "follower": nodes[(place + 1) % len(nodes)].pid}
    spies = Spies(given, load)
    if load == "drain":
        _drain(started, spies, processes)
    elif load == "both":
        with _consumer(started, "both") as consumer:
            _send(
                started,
                "both",
                dict(WORKS["both"].words),
                spies,
                {**processes, "consumer": consumer.pid},
            )
    else:
        _send(started, "sends", dict(WORKS[load].words), spies, processes)


def _send(
    started: Running, topic: str, words: dict[str, int], spies: Spies, processes: Mapping[str, int]
) -> None:
    scale = started.scale
    started.program.tell(
        "send",
        topic=started.topic(topic),
        queues=QUEUES,
        warm=scale.warm_s,
        seconds=scale.seconds,
        **words,
    )
    started.program.wait("begin", scale.warm_s + 30)
    spies.look(processes)
    started.program.wait("done", scale.seconds + 60)
    spies.wait()


def _drain(started: Running, spies: Spies, processes: Mapping[str, int]) -> None:
    fill(started)
    with _consumer(started, "stored") as consumer:
        spies.look({**processes, "consumer": consumer.pid})
        spies.wait()


@contextmanager
def _consumer(started: Running, topic: str) -> Iterator[Node]:
    """Start a consumer of the SDK in its own consumer group."""
    command = (sys.executable, "-m", "bench.consume", started.peer.servers, started.topic(topic))
    # An absolute path, because the process starts in the folder of its log.
    paths = {"PYTHONPATH": str(Path.cwd())}
    node = Node(
        "consumer", (*command, started.fresh("profile")), started.directory / "consumer.log", paths
    )
    node.start()
    try:
        yield node
    finally:
        node.kill()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=["*"], help=f"of {', '.join(LOADS)}")
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--stored", type=int, default=500_000, help="messages for the drain")
    parser.add_argument("--native", action="store_true", help="C frames too; slower")
    parser.add_argument(
        "--raw", action="store_true", help="folded stacks as text instead of pictures"
    )
    parser.add_argument("--directory", type=Path, default=Path("build/profiles"))
    parser.add_argument("--ports", type=int, default=PORTS)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    given.directory.mkdir(parents=True, exist_ok=True)
    fetch.load_program()
    scale = replace(FULL, seconds=given.seconds + 1.0, warm_s=WARM_S, stored=given.stored)
    loads = [load for load in LOADS if any(fnmatch.fnmatch(load, each) for each in given.only)]
    with (
        tempfile.TemporaryDirectory(prefix="profile-") as folder,
        running(OrderlyMQ, scale, Ports(given.ports), Path(folder)) as started,
    ):
        for load in loads:
            profile(started, load, given)


if __name__ == "__main__":
    main()
