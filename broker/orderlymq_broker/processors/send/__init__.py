"""
Sends: the checks of a message, its way into the log, and the answer with its place.

A full disk refuses a send in ``core/capacity.py``. Delays, retries and dead letters are in
``schedule/``, half messages in ``transactions/``. Begin with ``sends.py``.
"""
