"""
Requests of administrators: topics, groups, offsets, clients, accounts, settings, statistics.

Access control of every request is also here (``access.py``); it is the only part that a send or a pull passes through.
Begin with ``processor.py``, which lists the request codes.
"""
