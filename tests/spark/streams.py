"""Streams for tests, played through what there is."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def run_through(
    frame: "DataFrame", checkpoint: Path, rows: Callable[["DataFrame", int], None]
) -> None:
    """Play a stream through what there is."""
    query = (
        frame.writeStream.foreachBatch(rows)
        .option("checkpointLocation", str(checkpoint / "spark"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
