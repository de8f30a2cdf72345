"""
The formats and pipelines on each supported version of Spark; nothing here is part of a release.

`make spark-versions` runs it and writes docs/evidence/spark-versions.md.
Begin with `trial`; it is what runs on each version.
"""
