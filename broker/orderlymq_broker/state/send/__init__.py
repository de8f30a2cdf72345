"""
The duplicate window: which sends to ordered topics are known, and where the first copy of each is.

``processors/send/`` queries it. ``processors/topics/retention.py`` decides what it forgets.
Begin with ``duplicates.py``.
"""
