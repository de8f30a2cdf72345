"""
Kills, rolls and freezes for hours, and a canary that must raise no alarm: ``python -m tests.operator.canary.soak --hours 2``.

No act breaks the promise of a cluster that keeps its disks, so each False verdict and each counted trouble is a false alarm.
It ends with 1 if there was one, or if the order was not verified again; ``--seed`` repeats the same acts.
"""

import argparse
import asyncio
import logging
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Final, TypeAlias

from orderlymq_operator.canary.probes import Plan, now_s
from orderlymq_operator.canary.process import Address, CanaryProcess
from orderlymq_operator.canary.verdict import Limits, Verdict
from orderlymq_protocol.plurals import counted
from tests.cluster.processes import Group
from tests.waiting import until

LIMITS: Final = Limits(interval_s=0.2, target_s=1.0, stale_s=2.0)
PATIENCE_S: Final = 120.0  # On a busy machine a process takes many seconds to start.
_TAKEOVER_S: Final = 2.0
_AWAY_S: Final = (0.0, 8.0)
# The time between two acts, in which a consumer changes too.
_CALM_S: Final = (1.0, 6.0)
# By then a frozen leader's lease is over, and another one leads.
_FROZEN_S: Final = (0.5, 8.0)

Act: TypeAlias = Callable[[Group, Random], None]


def _restart(group: Group, node: int, how: signal.Signals, away_s: float) -> None:
    group.brokers[node].signal(how)
    group.brokers[node].wait()
    time.sleep(away_s)
    group.brokers[node].start()
    group.wait_for_status(node, timeout_s=PATIENCE_S)


def _kill_leader(group: Group, random: Random) -> None:
    _restart(group, group.wait_for_leader(), signal.SIGKILL, random.uniform(*_AWAY_S))


def _end_leader(group: Group, random: Random) -> None:
    _restart(group, group.wait_for_leader(), signal.SIGTERM, random.uniform(*_AWAY_S))


def _kill_follower(group: Group, random: Random) -> None:
    node = random.choice([each for each in group.brokers if each != group.leader()])
    _restart(group, node, signal.SIGKILL, random.uniform(*_AWAY_S))


def _kill_all(group: Group, random: Random) -> None:
    for broker in group.brokers.values():
        broker.kill()
    time.sleep(random.uniform(*_AWAY_S))
    for broker in group.brokers.values():
        broker.start()


def _roll(group: Group, random: Random) -> None:
    for node in random.sample(list(group.brokers), len(group.brokers)):
        _restart(group, node, signal.SIGTERM, 0.0)
        group.wait_for_leader()


def _freeze_leader(group: Group, random: Random) -> None:
    broker = group.brokers[group.wait_for_leader()]
    broker.signal(signal.SIGSTOP)
    time.sleep(random.uniform(*_FROZEN_S))
    broker.signal(signal.SIGCONT)


def _kill_name_server(group: Group, random: Random) -> None:
    group.name_server.kill()
    time.sleep(random.uniform(*_AWAY_S))
    group.name_server.start()


ACTS: Final[dict[str, Act]] = {
    "the leader is killed": _kill_leader,
    "the leader is ended": _end_leader,
    "a follower is killed": _kill_follower,
    "all brokers are killed": _kill_all,
    "all brokers are rolled": _roll,
    "the leader is frozen": _freeze_leader,
    "the name server is killed": _kill_name_server,
}


class Soak:
    """The canary of a group, and what was done to the group meanwhile.

    Attributes:
        alarms: the False verdicts, and those that did not become True again, each with the act before it.
        unproven_s: the longest time in which the order was not verified.
    """

    def __init__(self, group: Group, random: Random) -> None:
        plan = Plan(("g",), "canary", group.name_server_address, takeover_s=_TAKEOVER_S)
        self.process = CanaryProcess(plan, LIMITS, Address("127.0.0.1", 0), self._said)
        self.alarms: list[str] = []
        self.played = 0
        self.unproven_s = 0.0
        self._group = group
        self._random = random
        self._act = "nothing was done"
        self._unproven_at: float | None = None

    def _said(self, verdict: Verdict) -> None:
        if verdict.status == "False":
            self.alarms.append(f"{self._act}: {verdict.reason}: {verdict.message}")
        if self._unproven_at is not None:
            self.unproven_s = max(self.unproven_s, now_s() - self._unproven_at)
        self._unproven_at = None if verdict.status == "True" else self._unproven_at or now_s()

    @property
    def false_alarms(self) -> list[str]:
        """The False verdicts, and the troubles that were counted."""
        counts = self.process.canary.counts
        return [*self.alarms, *(f"{kind.value}: {count}" for kind, count in counts.items())]

    async def known(self) -> None:
        """Wait until the order is verified or broken; note if neither happens."""
        try:
            await until(lambda: self.process.verdict().status != "Unknown", PATIENCE_S)
        except TimeoutError:
            said = self.process.verdict().message
            self.alarms.append(f"{self._act}: not verified for {PATIENCE_S:g} s: {said}")

    async def play(self, name: str) -> None:
        """Play one of ACTS, wait for the verdict after it, and let a calm follow."""
        self._act = name
        await asyncio.to_thread(ACTS[name], self._group, self._random)
        await self.known()
        self.played += 1
        await asyncio.sleep(self._random.uniform(*_CALM_S))

    def __str__(self) -> str:
        budget = self.process.canary.budget
        return (
            f"{counted(self.played, 'act')}, {self.process.canary.takeovers} take-overs, {budget.good} good and {budget.bad} bad probes, "
            f"{self.unproven_s:.1f} s without a proof at most, {counted(len(self.false_alarms), 'false alarm')}"
        )


@asynccontextmanager
async def soaking(group: Group, random: Random) -> AsyncIterator[Soak]:
    """Run a canary until the block ends; the block begins after its first verdict."""
    soak = Soak(group, random)
    task = asyncio.create_task(soak.process.run())
    try:
        await soak.known()
        yield soak
        await soak.known()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def _play(seconds: float, seed: int) -> int:
    random, begun = Random(seed), now_s()
    with tempfile.TemporaryDirectory() as folder, Group(Path(folder)) as group:
        async with soaking(group, random) as soak:
            while now_s() - begun < seconds and not soak.false_alarms:
                name = random.choice(list(ACTS))
                _say(f"{timedelta(seconds=round(now_s() - begun))} {name}")
                await soak.play(name)
        for alarm in soak.false_alarms:
            _say(alarm)
        _say(f"seed {seed}: {soak}")
        return 1 if soak.false_alarms else 0


def main() -> int:
    """Read the command line and play."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=2.0, help="how long; 2 by default")
    parser.add_argument("--seed", type=int, default=1, help="which acts are played; 1 by default")
    words = parser.parse_args()
    logging.disable(logging.WARNING)  # The SDK's log lines about each act.
    return asyncio.run(_play(words.hours * 3600, words.seed))


if __name__ == "__main__":
    sys.exit(main())
