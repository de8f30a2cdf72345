"""
The duplicate window: which sends of ordered topics are known, and where their first copy is.

It is asked in ``processors/send/``. What it forgets is decided in ``processors/topics/retention.py``.
Begin with ``duplicates.py``.
"""
