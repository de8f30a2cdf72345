"""
A cluster as Spark's drivers, executors and workers use it: connections and reads, by blocking calls.

Spark's classes and Arrow's columns do not live here.
Begin with `access`.
"""
