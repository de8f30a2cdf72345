"""
A cluster as Spark's drivers, executors and workers use it: connections and reads, as blocking calls.

This package has no Spark classes and no Arrow columns.
Begin with `access`.
"""
