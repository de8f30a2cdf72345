"""
Tables of consumer groups: members, queue locks, offsets, assignments, parked keys.

The leader's clocks, leases and connections are in ``processors/groups/``. Begin with ``locks.py``.
"""
