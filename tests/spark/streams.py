"""Run streams over all available messages, for tests."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def run_through(
    frame: "DataFrame", checkpoint: Path, rows: Callable[["DataFrame", int], None]
) -> None:
    """Run a stream over all available messages."""
    query = (
        frame.writeStream.foreachBatch(rows)
        .option("checkpointLocation", str(checkpoint / "spark"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
