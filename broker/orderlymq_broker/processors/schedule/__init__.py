"""
Messages that wait: delay levels, timers and their recall, retries of consumers, dead letters.

A message becomes a dead letter in ``deadletters.py``, which ``retries.py`` and ``send/sends.py`` ask.
Half messages wait in ``transactions/``. Begin with ``delays.py``.
"""
