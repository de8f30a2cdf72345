"""
Readers that Spark calls: batch, stream, stream of Spark before 4.2. They plan the partitions; `source` reads them.

This package only reads.
Begin with `ranges`; all readers share it.
"""
