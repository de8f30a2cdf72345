"""
Consumer groups: members, queue locks, offsets, the fence, assignments, rebalance notices, parked keys.

``locks.py`` ends expired leases of queue locks. Administrators' requests about consumer groups are in ``admin/``, lag
and blocked queues in ``observe/``. Begin with ``members.py`` and ``locks.py``.
"""
