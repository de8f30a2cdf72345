"""
The table of timer messages that wait for their time.

Delay levels need no table, because their progress is an offset (``records.py``). ``processors/schedule/`` appends
the messages that are due. Begin with ``timers.py``.
"""
