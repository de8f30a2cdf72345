"""
Tables of topics: their configuration, their queues with the tail cache, and the phases of an expansion.

Messages themselves are in the store. Begin with ``topics.py``, then ``queues.py``.
"""
