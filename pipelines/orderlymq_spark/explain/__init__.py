"""
Explains the steps, the cost and the guarantees of a pipeline before it runs; without Spark.

This package writes nothing and starts nothing.
Begin with `explanation`.
"""
