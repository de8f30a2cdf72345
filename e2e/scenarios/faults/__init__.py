"""
Scenarios of faults: parts are killed, lost or cut off, and the rest continues.

Intended changes are in `changes`.
Begin with `test_leader_lost`.
"""
