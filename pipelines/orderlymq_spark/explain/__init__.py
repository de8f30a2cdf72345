"""
What a pipeline would do, what it would cost and what it guarantees, before it runs; without Spark.

Nothing here writes or starts anything.
Begin with `explanation`.
"""
