"""
The table of open half messages.

``processors/transactions/`` decides when producers are asked about them. Begin with ``halves.py``.
"""
