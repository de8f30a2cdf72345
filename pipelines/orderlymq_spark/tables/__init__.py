"""
Messages in files: archives of Parquet files, Delta tables and Iceberg tables.

The pipelines that use them are in `jobs`.
Begin with `archive`, the format "orderlymq_archive"; `parquet` describes the layout of an archive.
"""
