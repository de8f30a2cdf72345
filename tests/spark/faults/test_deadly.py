"""A process that is going to be killed stops exactly at the place of the order, with all of its threads."""

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from pyspark.sql.types import StructType

from orderlymq_spark.sink.writer import OrderedBatchWriter, OrderedStreamWriter
from tests.spark.faults import deadly
from tests.spark.faults.killed import DyingSink
from tests.spark.faults.kills import ROOT, Deck, Kill, never_reached

PROGRAM = """
import os, threading, time
from pathlib import Path

def tick():
    while True:
        with open("ticks", "a") as file:
            file.write("x")
        time.sleep(0.01)

threading.Thread(target=tick, daemon=True).start()
os.makedirs("out/_manifests")
for number in range(3):
    Path(f"draft-{number}").touch()
    Path(f"out/_manifests/{number}").hardlink_to(f"draft-{number}")
    time.sleep(0.1)
"""


def test_the_second_link_waits_until_somebody_wakes_it(tmp_path: Path) -> None:
    """The process passes the first link, stops completely at the second, and continues when it is woken."""
    os.mkfifo(tmp_path / deadly.WAKE)
    (tmp_path / deadly.ORDER).write_text(deadly.order_file("manifest", 1, stays=False))
    path = os.pathsep.join([str(ROOT / "tests" / "spark" / "faults" / "everywhere"), str(ROOT)])
    environment = {**os.environ, deadly.VARIABLE: str(tmp_path), "PYTHONPATH": path}
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], cwd=tmp_path, env=environment)
    try:
        end = time.monotonic() + 20
        while not (tmp_path / deadly.REACHED).exists() and time.monotonic() < end:
            time.sleep(0.01)
        stood = (tmp_path / "ticks").stat().st_size
        time.sleep(0.2)

        assert int((tmp_path / deadly.REACHED).read_text()) == process.pid
        assert sorted(os.listdir(tmp_path / "out" / "_manifests")) == ["0"]
        assert (tmp_path / "ticks").stat().st_size == stood

        os.close(os.open(tmp_path / deadly.WAKE, os.O_WRONLY | os.O_NONBLOCK))
        assert process.wait(20) == 0
        assert sorted(os.listdir(tmp_path / "out" / "_manifests")) == ["0", "1", "2"]
    finally:
        process.kill()
        process.wait()


def test_a_deck_deals_every_card_before_one_comes_again() -> None:
    """A deck repeats no card before all were dealt, even if some cards do not fit for a while."""
    cards = [Kill(pipeline, place, "all") for pipeline in ("archive", "copy") for place in "abcd"]
    deck = Deck(cards, Random(3))

    early = [deck.deal(lambda kill: kill.pipeline == "archive") for _ in range(6)]
    late = [deck.deal(lambda kill: kill.pipeline == "copy") for _ in range(4)]

    assert set(early[:4]) == set(cards[:4])
    assert set(early[4:]) < set(cards[:4])
    assert set(late) == set(cards[4:])
    assert deck.deal(lambda _: False) is None


@pytest.mark.parametrize("name", ["writer", "streamWriter"])
def test_a_sink_can_die_however_spark_writes_to_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replay writes frames, a load writes a stream; once, tasks of a replay were never killed."""
    reached: list[str] = []
    monkeypatch.setattr(deadly, "reach", reached.append)
    sink = DyingSink({"topic": "copy", "appId": "copied"})

    writer = getattr(sink, name)(StructType().add("body", "binary"), overwrite=False)

    assert isinstance(writer, OrderedBatchWriter | OrderedStreamWriter)
    writer.write(iter(()))
    assert [place for place in reached if place != "sending"] == ["copying", "copied"]


def test_a_place_to_which_nobody_comes_is_a_fault() -> None:
    """Laws that hold without any kill prove nothing, so such a place fails the campaign."""
    writing, copying = (
        Kill(*where, "worker") for where in (("archive", "writing"), ("copy", "copying"))
    )
    done = Counter({writing: 1})

    assert never_reached(done, Counter({writing: 9, copying: 2})) == []
    assert never_reached(done, Counter({copying: 2, Kill("copy", "copying", "all"): 1})) == [
        "nobody ever came to copy/copying, where 3 kills waited"
    ]
