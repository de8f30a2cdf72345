"""
Topics as Spark tables and streams, and the pipelines made of them.

`OrderlyMQDataSource` is the format "orderlymq". `ordered` prepares rows for the ordered sink. `read_stream`
fixes where a stream begins. Names are loaded on first use, so that the command can report that pyspark is
missing. Begin with `datasource.py`, or with `jobs` for the pipelines.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orderlymq_spark.datasource import OrderlyMQDataSource
    from orderlymq_spark.frames import delta_batches, ordered, read_batch, read_stream

_HOMES = {
    "OrderlyMQDataSource": "orderlymq_spark.datasource",
    "delta_batches": "orderlymq_spark.frames",
    "ordered": "orderlymq_spark.frames",
    "read_batch": "orderlymq_spark.frames",
    "read_stream": "orderlymq_spark.frames",
}

__all__ = ["OrderlyMQDataSource", "delta_batches", "ordered", "read_batch", "read_stream"]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module(home), name)
