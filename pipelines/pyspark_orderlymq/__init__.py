"""
The module by which Spark finds the format "orderlymq" without a setting: Spark searches top-level modules `pyspark_*`.

The code is in `orderlymq_spark`.
"""

from orderlymq_spark.datasource import OrderlyMQDataSource as DefaultSource

__all__ = ["DefaultSource"]
