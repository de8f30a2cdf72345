"""
Explains the steps, the cost and the guarantees of a pipeline before it runs; without Spark.

Nothing here writes or starts anything.
Begin with `explanation`.
"""
