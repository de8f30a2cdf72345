"""
The table of timer messages that wait for their time.

Delay levels need no table: their progress is an offset (``records.py``). Who appends what is due:
``processors/schedule/``. Begin with ``timers.py``.
"""
