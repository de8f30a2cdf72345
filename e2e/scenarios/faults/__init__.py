"""
Scenarios of faults: what is killed, lost or cut, and what goes on.

What people change on purpose is in `changes`.
Begin with `test_leader_lost`.
"""
