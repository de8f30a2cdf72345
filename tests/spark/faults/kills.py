"""
Drivers, executors and workers killed hundreds of times, and what must be true afterwards.

`python -m tests.spark.faults.kills [--kills 200] [--seed 1] [--minutes 60] [--master ...]` starts a broker and one driver
after the other (`killed`). In each life of a driver a few workers and executors are killed, which Spark makes good by
trying again, and in the end the driver. Where, whom and how often it is passed before comes from decks of all
combinations, shuffled by the seed; `deadly` brings the process to a halt at the place, so that the kill is exact.

Whom: a worker or runner (one Python process of Spark's), an executor (its JVM and its Python), the driver (JVM and
Python), its Python or its JVM alone, all processes at once, or the driver alone while one worker is cut off, and wakes
when the next driver has done the same work.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import psutil
import pyspark

from orderlymq.blocking import AdminClient
from tests.cluster.processes import Group
from tests.spark.faults import deadly
from tests.spark.faults.aftermath import Archived, broken_laws, load_faults
from tests.spark.faults.killed import NOW, OUTCOME, PIPELINES, SINK_PLACES
from tests.spark.topics import Topics

ROOT: Final = Path(__file__).parents[3]
#: As local[2] and local-cluster[2,1,1024]; a task of the former is tried again, too.
MASTERS: Final = ("local[2,8]", "local-cluster[2,1,1024]")
MESSAGES: Final = 160  # new ones for each driver: eight batches in each pipeline
_PATIENCE_S: Final = 1200.0  # on a busy machine
_LOOK_S: Final = 0.002
_TAKEN_S: Final = 60.0  # between reading the order and reporting that its place is reached
_SMALL_KILLS: Final = (3, 8)  # in one life: the start of a driver takes longest
_MISSED_MAX: Final = 3  # kills that time out because no process reaches their place

_TASKS: Final = {
    "archive": ("writing", "written"),
    "audit": ("keeping",),
    "copy": SINK_PLACES["copied"],
    "load": SINK_PLACES["loaded"],
}
_COMMITS: Final = {"archive": ("publishing", "manifest", "published")}
#: Spark's own files of a checkpoint: a batch is planned, and a batch is done.
_LOGS: Final = {"planned": "offsets", "committed": "commits"}
_MOMENT: Final = "any moment"
_MOMENT_MAX_S: Final = 4.0


@dataclass(frozen=True, slots=True)
class Kill:
    """A victim and the place at which it is killed."""

    pipeline: str
    place: str
    victim: str

    @property
    def ends_driver(self) -> bool:
        return self.victim not in ("worker", "executor")


def _small(*, cluster: bool) -> Iterator[Kill]:
    for pipeline, places in _TASKS.items():
        for place in places:
            yield Kill(pipeline, place, "worker")
            if cluster:
                yield Kill(pipeline, place, "executor")


def _great() -> Iterator[Kill]:
    for pipeline in PIPELINES:
        for place in _TASKS[pipeline]:
            for victim in ("all", "driver", "driver, a worker cut off"):
                yield Kill(pipeline, place, victim)
        for place in _COMMITS.get(pipeline, ()):
            for victim in ("all", "runner", "driver's Python"):
                yield Kill(pipeline, place, victim)
        for place in _LOGS:
            for victim in ("all", "driver's JVM"):
                yield Kill(pipeline, place, victim)
        yield Kill(pipeline, _MOMENT, "all")
    yield Kill("audit", "judged", "all")
    yield Kill("audit", "judged", "driver's JVM")


class Deck:
    """Deals all cards before one is dealt again."""

    def __init__(self, cards: Sequence[Kill], chance: Random) -> None:
        self._cards = cards
        self._chance = chance
        self._left: list[Kill] = []

    def deal(self, fits: Callable[[Kill], bool]) -> Kill | None:
        """Return the next card that fits; None if no card does."""
        for _ in range(2):
            for card in self._left:
                if fits(card):
                    self._left.remove(card)
                    return card
            fresh = [card for card in self._cards if card not in self._left]
            self._left += self._chance.sample(fresh, len(fresh))
        return None


@dataclass
class Campaign:
    """Kills on one topic, one driver after the other, in one folder."""

    topics: Topics
    folder: Path
    masters: Sequence[str] = MASTERS
    seed: int = 1
    tell: Callable[[str], object] = field(default=lambda _: None)

    def __post_init__(self) -> None:
        self.topic = self.topics.make()
        self.target, self.loaded = (self.topics.make(queues=3) for _ in range(2))
        self.done: Counter[Kill] = Counter()
        self.missed: Counter[Kill] = Counter()
        self.lives: Counter[str] = Counter()
        self.cut_off = {"woken": 0, "ended by itself": 0}
        self.archived = Archived(self.folder / "files")
        self.faults: list[str] = []
        self.messages = 0
        self.log = self.folder / "log"
        self._chance = Random(self.seed)
        self._small = {
            master: Deck(list(_small(cluster=_is_cluster(master))), self._chance)
            for master in self.masters
        }
        self._great = Deck(list(_great()), self._chance)
        self._orphan: psutil.Process | None = None
        self._driver: subprocess.Popen[bytes] | None = None
        for name in ("local", "tmp"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        os.mkfifo(self.folder / deadly.WAKE)
        _spark_home(self.folder / "spark")

    @property
    def kills(self) -> int:
        return self.done.total()

    # -- lives

    def live(self) -> None:
        """Run a driver with new messages, kill its workers and executors and finally the driver itself."""
        number = sum(self.lives.values())
        master = self.masters[number % len(self.masters)]
        self._fill()
        plan = self._plan(master)
        self.lives[master] += 1
        driver = self._start(master)
        for kill in plan:
            if self._carry_out(kill, driver):
                self.done[kill] += 1
                self.tell(
                    f"kill {self.kills}: {kill.victim}, at {kill.pipeline}/{kill.place};"
                    f" driver {number + 1} on {master}; {self.archived.count} files published"
                )
            else:
                self.missed[kill] += 1
        if not plan:
            self._expect_end(driver)
            self._wake()
        self._end(driver)
        self.faults += self.archived.look()

    def close(self) -> None:
        """Let a last driver finish all work and audit everything."""
        if self._orphan is not None:
            self.live()
        self._fill()  # so that each pipeline has another batch
        self._expect_end(self._start(self.masters[-1], closing=True))
        self._sweep()
        self.faults += [*never_reached(self.done, self.missed), *self.archived.look(whole=True)]
        if not (self.folder / OUTCOME).exists():
            return  # the fault of that driver is reported already, and its log shows the reason
        said = json.loads((self.folder / OUTCOME).read_text())
        topic = self.topics.read(self.topic)
        self.faults += broken_laws(
            self.folder / "files", topic, self.topics.read(self.target), said
        )
        self.faults += load_faults(topic, self.topics.read(self.loaded))

    def _fill(self) -> None:
        self.topics.numbered(self.topic, MESSAGES, start=self.messages)
        self.messages += MESSAGES

    def _plan(self, master: str) -> list[Kill]:
        if self._orphan is not None:
            return []  # this driver must pass the place at which the orphan waits
        last = self._great.deal(lambda _: True)
        assert last is not None
        most = PIPELINES.index(last.pipeline)
        found = [
            kill
            for _ in range(self._chance.randint(*_SMALL_KILLS))
            if (kill := self._small[master].deal(lambda k: PIPELINES.index(k.pipeline) <= most))
        ]
        return [*sorted(found, key=lambda kill: PIPELINES.index(kill.pipeline)), last]

    def _start(self, master: str, *, closing: bool = False) -> "subprocess.Popen[bytes]":
        for name in (NOW, deadly.ORDER, deadly.REACHED):
            (self.folder / name).unlink(missing_ok=True)
        settings = {
            "bootstrap": self.topics.bootstrap,
            "topic": self.topic,
            "target": self.target,
            "loaded": self.loaded,
            "folder": str(self.folder),
            "master": master,
            "closing": closing,
        }
        path = [str(ROOT / "tests" / "spark" / "faults" / "everywhere"), str(ROOT)]
        environment = {
            **os.environ,
            deadly.VARIABLE: str(self.folder),
            "PYTHONPATH": os.pathsep.join([*path, os.environ.get("PYTHONPATH", "")]),
            # Executors of local-cluster work below SPARK_HOME, and nothing removes the files of killed ones.
            "SPARK_HOME": str(self.folder / "spark"),
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={self.folder / 'tmp'}",
        }
        with self.log.open("ab") as out:
            self._driver = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.faults.killed", json.dumps(settings)],
                stdout=out,
                stderr=out,
                start_new_session=True,
                cwd=ROOT,
                env=environment,
            )
        return self._driver

    def _expect_end(self, driver: "subprocess.Popen[bytes]") -> None:
        code = driver.wait(_PATIENCE_S)
        if code != 0:
            self.faults.append(f"a driver that nobody killed ended with {code}: see {self.log}")

    def _end(self, driver: "subprocess.Popen[bytes]") -> None:
        """Wait for a driver whose last kill was missed, or that has lost only a part of itself."""
        try:
            driver.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.faults.append(f"a driver did not end within {_PATIENCE_S:.0f} s")
            self.stop()

    # -- one kill

    def _carry_out(self, kill: Kill, driver: "subprocess.Popen[bytes]") -> bool:
        """Wait for the place and kill; return whether a process was killed."""
        if kill.place in _LOGS:
            found = self._await_log(kill, driver)
        elif kill.place == _MOMENT:
            found = self._await_moment(kill, driver)
        else:
            found = self._await_place(kill, driver)
        if found is None or not psutil.pid_exists(found):
            return False
        self._kill(kill, driver, found)
        return True

    def _await_place(self, kill: Kill, driver: "subprocess.Popen[bytes]") -> int | None:
        """Return the process that has stopped at the place."""
        order = self.folder / deadly.ORDER
        passages = self._chance.randrange(4)
        stays = kill.victim == "driver, a worker cut off"
        draft = self.folder / "draft"
        draft.write_text(deadly.order_file(kill.place, passages, stays=stays))
        draft.rename(order)
        while self._waits_for(kill, driver):
            if (pid := self._who_stands()) is not None:
                return pid
            time.sleep(_LOOK_S)
        with suppress(FileNotFoundError):
            order.unlink()
            return None
        # A process took the order at the last moment, and reports it unless it dies.
        end = time.monotonic() + _TAKEN_S
        while (pid := self._who_stands()) is None and time.monotonic() < end:
            time.sleep(_LOOK_S)
        return pid

    def _who_stands(self) -> int | None:
        """Return the process that has reached its place; each process is returned once."""
        reached = self.folder / deadly.REACHED
        if not reached.exists():
            return None
        pid = int(reached.read_text())
        reached.unlink()
        return pid

    def _await_log(self, kill: Kill, driver: "subprocess.Popen[bytes]") -> int | None:
        log = self.folder / kill.pipeline / "spark" / _LOGS[kill.place]
        before = _numbers(log)
        wanted = before + 1 + self._chance.randrange(3)
        while self._waits_for(kill, driver):
            if _numbers(log) >= wanted:
                return driver.pid
            time.sleep(_LOOK_S)
        return None

    def _await_moment(self, kill: Kill, driver: "subprocess.Popen[bytes]") -> int | None:
        while self._waits_for(kill, driver) and self._now() != kill.pipeline:
            time.sleep(_LOOK_S)
        time.sleep(self._chance.uniform(0, _MOMENT_MAX_S))
        return driver.pid if driver.poll() is None else None

    def _waits_for(self, kill: Kill, driver: "subprocess.Popen[bytes]") -> bool:
        """Return whether the place may still be reached."""
        if driver.poll() is not None:
            return False
        return PIPELINES.index(self._now()) <= PIPELINES.index(kill.pipeline)

    def _now(self) -> str:
        with suppress(FileNotFoundError):
            return (self.folder / NOW).read_text() or PIPELINES[0]
        return PIPELINES[0]

    def _kill(self, kill: Kill, driver: "subprocess.Popen[bytes]", pid: int) -> None:
        standing = psutil.Process(pid)
        match kill.victim:
            case "worker" | "runner":
                standing.kill()
            case "executor":
                # Nearest first: Spark's daemon, then the executor itself, which must end before it can report.
                parents = standing.parents()
                (executor, *_) = [each for each in parents if each.name() == "java"]
                executor.kill()
                for each in (*parents[: parents.index(executor)], standing):
                    with suppress(psutil.NoSuchProcess):
                        each.kill()
            case "driver's Python":
                driver.kill()
            case "driver's JVM":
                self._jvm(driver).kill()
                if pid == driver.pid:
                    self._go_on()  # its Python must notice
            case "driver" | "driver, a worker cut off":
                jvm = self._jvm(driver)
                jvm.kill()
                driver.kill()
                if kill.victim != "driver":
                    self._orphan = standing
            case "all":
                self.stop()
        if kill.ends_driver and kill.victim != "runner":
            self._end(driver)

    @staticmethod
    def _jvm(driver: "subprocess.Popen[bytes]") -> psutil.Process:
        children = psutil.Process(driver.pid).children()
        (jvm,) = [each for each in children if each.name() == "java"]
        return jvm

    def _wake(self) -> None:
        """Let a worker of a former driver go on with its work."""
        orphan, self._orphan = self._orphan, None
        if orphan is None:
            return
        if not self._go_on():
            self.cut_off["ended by itself"] += 1
            return
        self.cut_off["woken"] += 1
        with suppress(psutil.Error):
            orphan.wait(30.0)
        with suppress(psutil.Error):
            orphan.kill()

    def _go_on(self) -> bool:
        """Wake the stopped process; return whether there was one."""
        try:
            os.close(os.open(self.folder / deadly.WAKE, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            return False
        return True

    # -- the end

    def stop(self) -> None:
        """Kill all processes of a driver, the driver first."""
        if self._driver is not None and self._driver.poll() is None:
            os.killpg(self._driver.pid, signal.SIGKILL)
            self._driver.wait()
        self._sweep()

    def _sweep(self) -> None:
        for process in psutil.process_iter():
            if process == self._orphan or process.pid == os.getpid():
                continue
            with suppress(psutil.Error):
                if process.environ().get(deadly.VARIABLE) == str(self.folder):
                    process.kill()

    def summary(self) -> str:
        """Return a table of the kills."""
        victims = sorted({kill.victim for kill in self.done})
        places = dict.fromkeys(
            (kill.pipeline, kill.place) for kill in [*_small(cluster=True), *_great()]
        )
        lines = [f"| place | {' | '.join(victims)} |", "|---|" + "---:|" * len(victims)]
        for pipeline, place in places:
            counts = [self.done[Kill(pipeline, place, victim)] or "" for victim in victims]
            lines.append(f"| {pipeline}: {place} | {' | '.join(map(str, counts))} |")
        counts = [
            sum(n for kill, n in self.done.items() if kill.victim == victim) for victim in victims
        ]
        lines.append(f"| **{self.kills} in all** | {' | '.join(map(str, counts))} |")
        lives = ", ".join(f"{count} on {master}" for master, count in self.lives.items())
        lines += [
            "",
            f"{sum(self.lives.values())} drivers ({lives}), {self.messages} messages,"
            f" {self.archived.count} files; workers cut off: {self.cut_off}",
            *(self.faults or ["Every law held."]),
        ]
        return "\n".join(lines)


def never_reached(done: Counter[Kill], missed: Counter[Kill]) -> list[str]:
    """Return the places of repeated attempts at which no process was killed, so that they were not tested."""
    reached = {(kill.pipeline, kill.place) for kill in done}
    waited: Counter[tuple[str, str]] = Counter()
    for kill, count in missed.items():
        waited[kill.pipeline, kill.place] += count
    return [
        f"nobody ever came to {pipeline}/{place}, where {count} kills waited"
        for (pipeline, place), count in waited.items()
        if count >= _MISSED_MAX and (pipeline, place) not in reached
    ]


def _is_cluster(master: str) -> bool:
    return master.startswith("local-cluster")


def _numbers(log: Path) -> int:
    with suppress(FileNotFoundError):
        return max((int(name) for name in os.listdir(log) if name.isdecimal()), default=-1)
    return -1


def _spark_home(folder: Path) -> None:
    """Make a SPARK_HOME like the installed one, but with its own folder for executors."""
    folder.mkdir()
    for each in Path(pyspark.__file__).parent.iterdir():
        (folder / each.name).symlink_to(each)


def show(text: str) -> None:
    """Print immediately, even if the output is a file."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=600.0)
    parser.add_argument("--master", action="append")
    given = parser.parse_args()
    end = time.monotonic() + given.minutes * 60
    with tempfile.TemporaryDirectory(prefix="kills-") as directory:
        folder = Path(directory)
        with (
            Group(folder / "cluster", 1) as group,
            AdminClient(group.name_server_address) as admin,
        ):
            campaign = Campaign(
                Topics(group.name_server_address, admin),
                folder,
                masters=given.master or MASTERS,
                seed=given.seed,
                tell=lambda line: show(f"{time.strftime('%H:%M:%S')} {line}"),
            )
            try:
                while (
                    campaign.kills < given.kills and not campaign.faults and time.monotonic() < end
                ):
                    campaign.live()
                campaign.close()
            finally:
                campaign.stop()
            show(campaign.summary())
            if campaign.faults:
                show(campaign.log.read_text()[-8000:])
    return 1 if campaign.faults else 0


if __name__ == "__main__":
    sys.exit(main())
