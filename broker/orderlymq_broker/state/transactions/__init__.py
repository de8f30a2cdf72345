"""
The table of open half messages.

``processors/transactions/`` decides when producers are asked about half messages. Begin with ``halves.py``.
"""
