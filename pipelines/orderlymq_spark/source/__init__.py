"""
Reading topics: where a read begins and ends, and stored records as Arrow columns.

`readers` has the classes that Spark calls; this package only reads.
Begin with `queuereader`; it reads one range of one queue.
"""
