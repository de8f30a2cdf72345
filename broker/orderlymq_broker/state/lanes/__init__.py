"""
Key lanes: what each group with ``concurrency: Key`` has looked at, owes and has in hand.

A lane is handed out, parked and ended in ``queue.py``. The leader's scans, leases and waiting fetches are in ``processors/lanes/``. Begin with ``queue.py``.
"""
