"""
The invariants of features other than order, read from a history; the oracle judges the order.

Pure: no process and no clock.
Begin with `breaches`.
"""
