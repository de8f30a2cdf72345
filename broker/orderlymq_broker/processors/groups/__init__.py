"""
Consumer groups: members, queue locks, offsets, the fence, assignments, rebalance notices, parked keys.

A lease of a lock expires in ``locks.py``. What administrators change or read of groups is in ``admin/``, lag and blocked
queues in ``observe/``. Begin with ``members.py`` and ``locks.py``.
"""
