"""
Sends: the checks of a message, its way into the log, and the answer with its queue and offset.

``core/capacity.py`` refuses sends when the disk is full. Delays, retries and dead letters are in
``schedule/``, half messages in ``transactions/``. Begin with ``sends.py``.
"""
