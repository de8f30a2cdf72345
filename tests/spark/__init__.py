"""The pipelines, mostly against a real cluster and a real Spark."""
