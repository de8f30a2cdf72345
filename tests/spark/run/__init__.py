"""Tests of `orderlymq_spark.run`."""
