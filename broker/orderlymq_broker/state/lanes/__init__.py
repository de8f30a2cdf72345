"""
Key lanes: what each group with ``concurrency: Key`` has scanned, still owes and has in the hands of its members.

``queue.py`` hands lanes out, parks them and ends them. The leader's scans, leases and waiting fetches are in
``processors/lanes/``. Begin with ``queue.py``.
"""
