"""
Spark pipelines without a request to Spark: their manifests or resources, and the results that their runs left.

Not here: how a pipeline runs (`orderlymq_spark`), what brokers report of its queues (`pages`).
Begin with `reports.py`, the common form; `files.py` reads pipelines of a laptop, `kubernetes.py` those of the API server.
"""
