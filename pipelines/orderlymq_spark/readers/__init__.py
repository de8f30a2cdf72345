"""
What Spark calls to read: batch, stream, stream of Spark before 4.2. What is read how lives in `source`.

Nothing here writes.
Begin with `ranges`; all readers share it.
"""
