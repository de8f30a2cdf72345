"""
The trial of one version of Spark: a small test of each feature, and whether its law held.

`python -m tests.spark.versions.trial SETTINGS` with {"master", "bootstrap", "folder", "prefix", "cells"}, in the environment of
that version; prints a line of JSON for each cell, {"name", "passed", "said"}. The master `connect` is a separate Spark Connect server.
"""

import json
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from orderlymq.blocking import AdminClient
from orderlymq_spark.frames import FILTER_PUSHDOWN, ordered, read_batch, read_stream
from orderlymq_spark.jobs import archive, replay
from orderlymq_spark.jobs.audit import job as audit
from orderlymq_spark.run.session import start_session
from orderlymq_spark.sparkversion import HAS_LIMITS
from orderlymq_spark.specs import ArchiveSpec, OrderAuditSpec, ReplaySpec, Source
from tests.spark.connect.connectserver import connect_server
from tests.spark.topics import Topics, numbers_by_key
from tests.spark.versions.page import CELLS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COUNT: Final = 60
KEYS: Final = 5
_SAID_MAX: Final = 300
#: Spark 4.0 gives a Python 10 s to start, without a setting; a busy machine may need more.
_BUSY: Final = "Python worker failed to connect back"
_TRIES: Final = 6


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a law, with a note."""

    name: str
    passed: bool
    said: str = ""


@dataclass(frozen=True, slots=True)
class Trial:
    """A session, and topics for the trial."""

    spark: "SparkSession"
    topics: Topics
    folder: Path
    prefix: str

    def topic(self, **given: Any) -> str:
        """Return a topic with COUNT messages."""
        name = self.topics.make(**given)
        self.topics.numbered(name, COUNT, keys=KEYS)
        return name

    def empty(self) -> str:
        return self.topics.make(queues=3)

    def frame(self, topic: str, **given: Any) -> "DataFrame":
        return read_batch(self.spark, bootstrap=self.topics.bootstrap, topic=topic, **given)

    def source(self, topic: str, **options: Any) -> Source:
        return Source(bootstrap=self.topics.bootstrap, topic=topic, options=options)

    def place(self, name: str) -> Path:
        return self.folder / f"{self.prefix}-{name}"

    def spread(self, topic: str) -> dict[str | None, list[str]]:
        """Return the numbers of each key, in order, as a client reads them."""
        return numbers_by_key(self.topics.read(topic))


def batch(trial: Trial) -> str:
    topic = trial.topic()
    rows = trial.frame(topic, sequenceProperty="n").orderBy("queue_id", "queue_offset").collect()
    found = [(row.queue_id, row.queue_offset, bytes(row.body), str(row.seq)) for row in rows]
    assert found == [
        (queue.queue_id, message.queue_offset, message.body, message.properties["n"])
        for queue, messages in sorted(trial.topics.read(topic).items())
        for message in messages
    ]
    assert len(found) == COUNT
    return ""


def filters(trial: Trial) -> str:
    topic = trial.topic()
    all_rows = trial.frame(topic).collect()
    pushes = trial.spark.conf.get(FILTER_PUSHDOWN, "false") == "true"
    middle = sorted(row.store_ts for row in all_rows)[COUNT // 2]
    cases: tuple[tuple[Any, Callable[[Any], bool]], ...] = (
        (F.col("queue_id") == 1, lambda row: row.queue_id == 1),
        (F.col("queue_offset") >= 7, lambda row: row.queue_offset >= 7),
        (F.col("store_ts") >= F.lit(middle), lambda row: row.store_ts >= middle),
        (F.col("sharding_key") == "key-3", lambda row: row.sharding_key == "key-3"),
        (F.col("tags") == "odd", lambda row: row.tags == "odd"),
        (
            (F.col("tags").isin("odd", "even")) & (F.col("queue_offset").between(3, 9)),
            lambda row: 3 <= row.queue_offset <= 9,
        ),
    )
    for where, holds in cases:
        frame = trial.frame(topic, pushFilters=pushes)
        found = {row.message_id for row in frame.where(where).collect()}
        assert found == {row.message_id for row in all_rows if holds(row)}, str(where)
    return ""


def stream(trial: Trial) -> str:
    topic, where = trial.topic(), trial.place("stream")
    batches = _play(trial, topic, where)
    trial.topics.numbered(topic, 10, keys=KEYS, start=COUNT)
    batches += _play(trial, topic, where)
    rows = trial.spark.read.parquet(str(where / "rows")).collect()
    assert sorted((row.queue_id, row.queue_offset) for row in rows) == sorted(
        (queue.queue_id, message.queue_offset)
        for queue, messages in trial.topics.read(topic).items()
        for message in messages
    )
    return f"batches of {', '.join(map(str, batches))}"


def limits(trial: Trial) -> str:
    batches = _play(trial, trial.topic(), trial.place("limits"), maxOffsetsPerTrigger=25)
    assert batches == ([25, 25, 10] if HAS_LIMITS else [COUNT])
    return (
        ""
        if HAS_LIMITS
        else "availableNow makes one batch; before Spark 4.2 a source has no limits"
    )


def _play(trial: Trial, topic: str, where: Path, **given: Any) -> list[int]:
    frame = read_stream(
        trial.spark,
        where,
        bootstrap=trial.topics.bootstrap,
        topic=topic,
        includeBody=False,
        **given,
    )
    query = (
        frame.select("queue_id", "queue_offset")
        .writeStream.format("parquet")
        .option("path", str(where / "rows"))
        .option("checkpointLocation", str(where / "spark"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]


def sink(trial: Trial) -> str:
    topic, target = trial.topic(), trial.empty()
    options = {"bootstrap": trial.topics.bootstrap, "topic": target, "appId": "trial"}
    for _ in range(2):
        rows = ordered(trial.frame(topic))
        rows.write.format("orderlymq").options(**options, orderBy="queue_offset").mode(
            "append"
        ).save()
    assert trial.spread(target) == trial.spread(topic)
    return "written twice, stored once"


def stream_sink(trial: Trial) -> str:
    topic, target = trial.topic(), trial.empty()
    spec = ReplaySpec(
        type="replay",
        source=trial.source(topic, maxOffsetsPerTrigger=25),
        checkpoint=trial.place("copy"),
        target=target,
    )
    replay.run(f"{trial.prefix}-copy", spec, lambda: trial.spark)
    trial.topics.numbered(topic, 10, keys=KEYS, start=COUNT)
    replay.run(f"{trial.prefix}-copy", spec, lambda: trial.spark)
    assert trial.spread(target) == trial.spread(topic)
    return ""


def parquet(trial: Trial) -> str:
    return _archive(trial, "parquet")


def delta(trial: Trial) -> str:
    return _archive(trial, "delta")


def _archive(trial: Trial, kind: Any) -> str:
    topic, path = trial.topic(), trial.place(kind)
    spec = ArchiveSpec(
        type="archive",
        source=trial.source(topic, maxOffsetsPerTrigger=25),
        checkpoint=trial.place(f"{kind}-checkpoint"),
        path=path,
        format=kind,
    )
    archive.run(f"{trial.prefix}-{kind}", spec, lambda: trial.spark)
    trial.topics.numbered(topic, 10, keys=KEYS, start=COUNT)
    archive.run(f"{trial.prefix}-{kind}", spec, lambda: trial.spark)
    import duckdb  # noqa: PLC0415 - who knows nothing of us

    files = _files(path, kind)
    found = duckdb.sql(f"select queue_id, queue_offset from read_parquet({files!r}) order by all")
    assert found is not None
    assert found.fetchall() == sorted(
        (queue.queue_id, message.queue_offset)
        for queue, messages in trial.topics.read(topic).items()
        for message in messages
    )
    return ""


def _files(path: Path, kind: str) -> list[str]:
    if kind == "parquet":
        return [str(each) for each in path.glob("*/*/*.parquet")]
    from deltalake import DeltaTable  # noqa: PLC0415 - only where it is needed

    return [str(path / Path(each).name) for each in DeltaTable(str(path)).file_uris()]


def audits(trial: Trial) -> str:
    topic = trial.topic()
    for name, given in (
        ("batch", {}),
        ("stream", {"stream": True, "checkpoint": trial.place("audit")}),
    ):
        spec = OrderAuditSpec(
            type="order-audit", source=trial.source(topic), sequence_property="n", **given
        )
        outcome = audit.run(f"{trial.prefix}-{name}", spec, lambda: trial.spark)
        assert outcome.passed
        assert outcome.data["messages"] == COUNT
    return ""


PLAYS: Final = (batch, filters, stream, limits, sink, stream_sink, parquet, delta, audits)


def results(trial: Trial, cells: Collection[str]) -> Iterator[Result]:
    """Yield the result of each cell; a failed cell does not stop the others."""
    for name, play in zip(CELLS, PLAYS, strict=True):
        if name in cells:
            yield _result(trial, name, play)


def _result(trial: Trial, name: str, play: Callable[[Trial], str]) -> Result:
    for attempt in range(_TRIES):
        sys.stderr.write(f"{time.strftime('%H:%M:%S')} {trial.prefix}: {name}\n")
        try:
            return Result(name, True, play(replace(trial, prefix=f"{trial.prefix}-{attempt}")))
        except Exception as error:
            traceback.print_exc()
            said = f"{type(error).__name__}: {error}"
            if _BUSY not in said:
                break
    return Result(name, False, said[:_SAID_MAX])


def main(settings: dict[str, str]) -> Iterator[Result]:
    """Yield the result of each cell, on a new server if the master is `connect`."""
    if settings["master"] == "connect":
        with connect_server(Path(settings["folder"])) as address:
            yield from main({**settings, "master": address})
        return
    patience = {"spark.python.authenticate.socketTimeout": "600s"}
    spark = start_session("trial", master=settings["master"], memory="700m", settings=patience)
    with AdminClient(settings["bootstrap"]) as admin:
        topics = Topics(settings["bootstrap"], admin, prefix=settings["prefix"])
        trial = Trial(spark, topics, Path(settings["folder"]), settings["prefix"])
        yield from results(trial, settings["cells"].split(";") if settings["cells"] else CELLS)
    spark.stop()


if __name__ == "__main__":
    told = sys.stdout
    with redirect_stdout(sys.stderr):
        for each in main(json.loads(sys.argv[1])):
            told.write(json.dumps(asdict(each)) + "\n")
            told.flush()
