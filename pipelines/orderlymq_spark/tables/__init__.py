"""
Messages in files: archives of Parquet files and Delta tables.

What a pipeline does with them lives in `jobs`.
Begin with `archive`, the format "orderlymq_archive"; `parquet` says how an archive is laid out.
"""
