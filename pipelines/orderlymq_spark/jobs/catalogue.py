"""
The types of pipelines: purpose, what the type's test proves, and the module that runs it.

Each module has `run(name, spec, spark) -> Outcome`; `spark` is a function that starts Spark on demand.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Final

from orderlymq_runtime.process.ending import interrupted_by_termination
from orderlymq_spark.run.outcome import Outcome, SparkStarter
from orderlymq_spark.specs import Pipeline


@dataclass(frozen=True, slots=True)
class Entry:
    """
    One type of pipeline.

    Attributes:
        begins_with_spark: the work begins when Spark has started; other types need no Spark, or not always.
    """

    about: str
    invariant: str
    module: str
    begins_with_spark: bool = True


CATALOGUE: Final = {
    "archive": Entry(
        "topics into Parquet files named by offset range, a Delta or an Iceberg table",
        "every offset is archived once, in order, whichever process is killed and when",
        "archive",
    ),
    "compact": Entry(
        "small files of an archive into large ones",
        "the same rows in the same order; ranges stay contiguous",
        "compact",
        begins_with_spark=False,
    ),
    "order-audit": Entry(
        "proof that nothing is missing, repeated or out of order per key, or a list of the places where it is",
        "no finding in a clean log; every injected fault is found with its place; the same result for any division into batches",
        "audit.job",
    ),
    "skew-report": Entry(
        "load by queue and key, and the recommended number of queues",
        "simulated loads equal a recount; the advice never falls when capacity falls",
        "skew.job",
    ),
    "lag": Entry(
        "how far groups are behind, in messages and time",
        "the time lag is the age of the first unconsumed message, from its store time",
        "lag",
        begins_with_spark=False,
    ),
    "dead-letters": Entry(
        "why messages became dead letters, and which were overtaken",
        "every dead letter counted once and joined to its origin by message id",
        "deadletters",
        begins_with_spark=False,
    ),
    "redrive": Entry(
        "dead letters back to their topic; a dry run by default",
        "per key in origin order; a key stops at its first failure; a plan sends nothing twice",
        "redrive",
        begins_with_spark=False,
    ),
    "replay": Entry(
        "a topic copied into another topic",
        "equal counts and order per key; stopping and resuming repeats nothing",
        "replay",
    ),
    "mirror": Entry(
        "topics copied to another cluster, with the offsets of groups; without Spark",
        "each queue is a prefix of its source, offset by offset, whichever process is killed and however many mirrors run",
        "mirror.job",
        begins_with_spark=False,
    ),
    "cdc-apply": Entry(
        "binlog events of Debezium, Canal or Maxwell into a Delta table",
        "the table equals the source at one position; repeated and late events change nothing",
        "cdc.job",
    ),
}


def run(pipeline: Pipeline, spark: SparkStarter) -> Outcome:
    """Run a pipeline until it ends.

    Raises:
        OrderlyMQError: The pipeline failed; the text says what to do.
        KeyboardInterrupt: A signal arrived and the job does not handle it itself.
    """
    # The first process of a container ignores a signal for which it has no handler.
    with interrupted_by_termination():
        module = import_module(f"orderlymq_spark.jobs.{CATALOGUE[pipeline.spec.type].module}")
        outcome: Outcome = module.run(pipeline.name, pipeline.spec, spark)
        return outcome
