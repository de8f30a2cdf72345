"""
Messages that wait: delay levels, timers and their recall, retries of consumers, dead letters.

A message becomes a dead letter in ``retries.py`` (a consumer hands it back too often) or in ``send/sends.py``
(it is sent to a retry topic too often). Half messages wait in ``transactions/``. Begin with ``waits.py``.
"""
