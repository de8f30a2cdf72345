"""
What Spark calls to read: batch, stream, stream of Spark before 4.2. They plan the partitions; `source` reads them.

Nothing here writes.
Begin with `ranges`; all readers share it.
"""
