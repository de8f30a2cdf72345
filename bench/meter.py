"""Measures the part of a run between two events of the load program: time, CPU of each side, and CPU of other processes."""

import os
import time
from dataclasses import dataclass

import psutil
from bench.peers.nodes import Peer
from bench.program import Event, Program


@dataclass(frozen=True, slots=True)
class Reading:
    """All clocks at one moment, in seconds."""

    at: float
    cluster: float
    client: float
    ours: float
    machine: float

    @classmethod
    def take(cls, peer: Peer, program: Program) -> "Reading":
        """Read all clocks."""
        times = psutil.cpu_times()
        client = psutil.Process(program.pid).cpu_times()
        return cls(
            time.monotonic(),
            peer.cpu_s(),
            client.user + client.system,
            time.process_time(),
            sum(times) - times.idle - times.iowait - times.guest - times.guest_nice,
        )


@dataclass(frozen=True, slots=True)
class Spent:
    """The difference of two readings."""

    seconds: float
    cluster_s: float
    client_s: float
    elsewhere: float  # the share of the machine's CPUs that other processes used


def spent(begin: Reading, end: Reading, cpus: int) -> Spent:
    """Return the resources used between two readings.

    *elsewhere* is a share of all *cpus* of the machine.
    """
    seconds = end.at - begin.at
    cluster, client = end.cluster - begin.cluster, end.client - begin.client
    rest = end.machine - begin.machine - cluster - client - (end.ours - begin.ours)
    return Spent(seconds, cluster, client, max(0.0, rest) / seconds / cpus)


class Meter:
    """A meter that takes a reading whenever the load program reports the begin or end of the measured part."""

    def __init__(self, peer: Peer, program: Program) -> None:
        self._peer = peer
        self._program = program
        self._readings: dict[str, Reading] = {}
        program.heard = self._hear

    def _hear(self, event: Event) -> None:
        if event["event"] in ("begin", "end"):
            self._readings[event["event"]] = Reading.take(self._peer, self._program)

    def spent(self) -> Spent:
        """Return the resources that the last measured part used."""
        return spent(self._readings["begin"], self._readings["end"], os.cpu_count() or 1)
