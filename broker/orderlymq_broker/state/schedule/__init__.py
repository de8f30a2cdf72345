"""
The table of timer messages that wait for their time.

Delay levels need no table: their progress is an offset (``records.py``). Due messages are appended by
``processors/schedule/``. Begin with ``timers.py``.
"""
