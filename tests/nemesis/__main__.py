"""
``python -m tests.nemesis``: play a schedule of faults against real processes and judge what happened.

The program starts itself again in namespaces of its own (network, mounts, process ids), so that two
runs never meet, nothing outside is touched, and nothing is left behind when it is killed.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.nemesis.clients.programs import build_javas
from tests.nemesis.cluster import BESIDES, QUEUES, TOPIC, Cluster
from tests.nemesis.ground import disks, ioerrors, namespaces
from tests.nemesis.ground.disks import Disk
from tests.nemesis.ground.ground import Ground, GroundError, Loopback, Namespaces, run
from tests.nemesis.ground.ioerrors import IoErrors
from tests.nemesis.ground.namespaces import say
from tests.nemesis.report import write_reports
from tests.nemesis.run import Run
from tests.nemesis.schedule import Ability, Plan

#: A transaction is checked after two seconds, and often enough to outlast every fault.
SETTINGS: Final[Mapping[str, Any]] = {
    "timers": {
        "transaction_timeout_ms": 2_000,
        "transaction_check_interval_ms": 2_000,
        "transaction_check_max": 60,
    }
}


def main() -> int:
    """Play and report; return 0 if the promise was kept."""
    options = _options()
    if namespaces.is_inside():
        return _play(options)
    if not options.no_java:
        build_javas()  # inside there is no network to build with
    sizes = [options.replicas] if options.replicas else [3, 5]
    minutes = options.minutes / len(sizes)
    words = ("tests.nemesis", *sys.argv[1:])
    return max(
        [
            namespaces.enter(
                *words, f"--replicas={size}", f"--minutes={minutes}", bare=options.bare
            )
            for size in sizes
        ]
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.nemesis", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="what the schedule is made of")
    parser.add_argument(
        "--minutes", type=float, default=4.0, help="how long faults are played, over all groups"
    )
    parser.add_argument(
        "--replicas", type=int, default=0, choices=(0, 3, 5), help="0: first three, then five"
    )
    parser.add_argument(
        "--ground",
        choices=("namespaces", "loopback"),
        default="namespaces",
        help="loopback: no network faults, but dead consumers are proven dead",
    )
    parser.add_argument(
        "--election-ms",
        type=int,
        help="election time-out, for machines so busy that brokers often stand still for longer",
    )
    parser.add_argument("--no-java", action="store_true", help="SDK clients only")
    parser.add_argument("--bare", action="store_true", help="without namespaces and file systems")
    parser.add_argument("--out", type=Path, default=Path(".nemesis"), help="for reports and logs")
    return parser.parse_args()


def _play(options: argparse.Namespace) -> int:
    replicas: int = options.replicas
    where = options.out / f"seed-{options.seed}-of-{replicas}"
    shutil.rmtree(where, ignore_errors=True)
    where.mkdir(parents=True)
    scratch = Path(tempfile.mkdtemp(prefix="nemesis-"))
    javas = [] if options.no_java else build_javas()
    abilities, ground = _ground(options, replicas)
    if javas:
        abilities |= Ability.JAVA
    cluster_disks: dict[int, Disk] = {}
    if namespaces.has_namespaces() and disks.can_mount(scratch):
        abilities |= Ability.DISK
        nodes = range(1, replicas + 1)
        cluster_disks = {
            node: Disk(scratch / f"disk-{node}.img", scratch / f"disk-{node}") for node in nodes
        }
    cluster = Cluster(
        where.resolve(),
        replicas,
        ground,
        cluster_disks,
        settings=SETTINGS,
        raft=_timing(options.election_ms),
        guarded=True,
        topics={TOPIC: QUEUES, **BESIDES},
    )
    library = ioerrors.build(scratch)
    if library is not None:
        abilities |= Ability.IO_ERRORS
        for node in range(1, replicas + 1):
            switch = scratch / f"io-errors-{node}"
            cluster.io_errors[node] = IoErrors(library, switch, cluster.data_dir(node))
            cluster.add(node)
    try:
        plan = Plan(replicas, 60 * options.minutes, abilities)
        record = Run(options.seed, plan, cluster, javas, say).play()
    finally:
        cluster.close()
        ground.close()
        shutil.rmtree(scratch, ignore_errors=True)
    sys.stdout.write(write_reports(record, where))
    return 0 if record.kept else 1


def _timing(election_ms: int | None) -> dict[str, int]:
    if election_ms is None:
        return {}
    return {
        "election_ms": election_ms,
        "heartbeat_ms": election_ms // 4,
        "tick_ms": election_ms // 8,
    }


def _ground(options: argparse.Namespace, replicas: int) -> tuple[Ability, Ground]:
    if not namespaces.has_namespaces():
        return Ability.NONE, Loopback()
    run("ip", "link", "set", "lo", "up")
    if options.ground == "loopback":
        return Ability.NONE, Loopback()
    try:
        # One more, for a replica that joins.
        return Ability.NETWORK, Namespaces(replicas + 1)
    except (GroundError, OSError) as error:
        say(f"no network faults here: {error}")
        return Ability.NONE, Loopback()


if __name__ == "__main__":
    sys.exit(main())
