"""
Requests of administrators: topics, groups, offsets, clients, accounts, settings, statistics.

Access control of every request is here, too (``access.py``). Nothing here is on the way of a send or a pull
but that check. Begin with ``processor.py``, which lists the request codes.
"""
