"""
Reading topics: where a read begins and ends, and stored records as Arrow columns.

What Spark calls lives in `readers`; nothing here writes.
Begin with `queuereader`; it reads one range of one queue.
"""
