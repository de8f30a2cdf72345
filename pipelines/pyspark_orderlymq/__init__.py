"""
The name by which Spark finds the format "orderlymq" without a setting: top-level modules `pyspark_*`.

Everything stands in `orderlymq_spark`.
"""

from orderlymq_spark.datasource import OrderlyMQDataSource as DefaultSource

__all__ = ["DefaultSource"]
