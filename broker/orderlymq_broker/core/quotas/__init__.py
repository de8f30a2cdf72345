"""
Quotas of accounts and of addresses: requests and bytes per second, connections.

``bucket.py`` counts one of them, ``quotas.py`` decides about a request. Each leader counts for itself, and all of it is its memory.
Nothing here reads a clock: requests bring their time. Begin with ``quotas.py``.
"""
