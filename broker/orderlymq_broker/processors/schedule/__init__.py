"""
Messages that wait: delay levels, timers and their recall, retries of consumers, dead letters.

``retries.py`` and ``send/sends.py`` ask ``deadletters.py`` to turn a message into a dead letter.
Half messages wait in ``transactions/``. Begin with ``delays.py``.
"""
