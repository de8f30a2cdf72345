"""
The invariants beside the order, read from a history; the order is the oracle's.

Pure: no process and no clock.
Begin with `breaches`.
"""
