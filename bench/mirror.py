"""
Messages per second of a mirror from one cluster to another on this machine: each has one broker, whose CPU time is shown.

``python -m bench.mirror [--rows 400000] [--size 1024] [--queues 4] [--rounds 3] [--quick]``
"""

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

import psutil
from tests.cluster.processes import Group
from tests.spark.clusters import Clusters
from tests.spark.topics import Topics

from orderlymq.blocking import AdminClient
from orderlymq_spark.jobs.mirror import job
from orderlymq_spark.specs import MirrorSpec, Source


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--queues", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one round of 40,000 messages")
    given = parser.parse_args()
    rows, rounds = (40_000, 1) if given.quick else (given.rows, given.rounds)
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        with (
            # An administrator uses the secret of the cluster that was started last.
            Group(folder / "source", 1) as source,
            AdminClient(source.name_server_address) as one,
            Group(folder / "target", 1) as target,
            AdminClient(target.name_server_address) as other,
        ):
            both = Clusters(
                Topics(source.name_server_address, one), Topics(target.name_server_address, other)
            )
            processes = {"mirror": psutil.Process()}
            for name, group in (("source", source), ("target", target)):
                (broker,) = group.brokers.values()
                processes[name] = psutil.Process(broker.pid)
            topic = both.make("mirrored", queues=given.queues)
            both.source.bulk(topic, rows, size=given.size, text=True)
            rates = [
                one_round(both, topic, folder / str(each), processes) for each in range(rounds)
            ]
    print(f"median: {median(rates):,.0f} messages/s of {given.size} bytes in {given.queues} queues")


def one_round(
    both: Clusters, topic: str, folder: Path, processes: dict[str, psutil.Process]
) -> float:
    """Copy everything to a recreated topic; return messages per second."""
    both.target.admin.delete_topic(topic)
    queues = len(both.source.queues(topic))
    both.target.admin.create_topic(topic, queues=queues, ordered=True, perm=4)
    spec = MirrorSpec(
        type="mirror",
        source=Source(bootstrap=both.source.bootstrap, topic=topic),
        target_bootstrap=both.target.bootstrap,
        checkpoint=folder,
    )
    spent = {name: sum(each.cpu_times()[:2]) for name, each in processes.items()}
    began = time.perf_counter()
    copied: int = job.run("bench", spec, lambda: None).data["rows"]  # type: ignore[arg-type,return-value]  # it starts no Spark
    seconds = time.perf_counter() - began
    cpu = ", ".join(
        f"{name} {sum(each.cpu_times()[:2]) - spent[name]:.1f} s"
        for name, each in processes.items()
    )
    print(f"{copied / seconds:,.0f} messages/s in {seconds:.1f} s; CPU: {cpu}", flush=True)
    return copied / seconds


if __name__ == "__main__":
    main()
