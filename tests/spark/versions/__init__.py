"""
The formats and pipelines on each version of Spark that we say they work on; nothing here is ours to deliver.

`make spark-versions` runs it and writes docs/evidence/spark-versions.md.
Begin with `trial`; it is what runs on each version.
"""
