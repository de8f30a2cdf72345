"""
The table of open half messages.

Who asks producers about them, and when, is ``processors/transactions/``. Begin with ``halves.py``.
"""
