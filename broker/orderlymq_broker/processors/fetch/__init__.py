"""
Reading messages: pulls and long polling, filters by tag and SQL, queries by key, offset and time.

Who may pull an ordered queue is decided in ``groups/fence.py``; nothing here changes the state.
Begin with ``pull.py``, then ``read.py``.
"""
