"""
Spark pipelines without a request to Spark: their manifests or resources, and what their runs left.

Not here: how a pipeline runs (`orderlymq_spark`), what brokers say of its queues (`pages`).
Begin with `reports.py`, the form of both; `files.py` reads a laptop's, `kubernetes.py` those of the API server.
"""
