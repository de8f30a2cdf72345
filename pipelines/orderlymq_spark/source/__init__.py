"""
Reading topics: where a read begins and ends, and stored records as Arrow columns.

Spark's classes live in `datasource`; nothing here writes.
Begin with `queuereader`; it reads one range of one queue.
"""
