"""
Reading messages: pulls and long polling, filters by tag and SQL, queries by key, offset and time.

``groups/fence.py`` decides which client may pull an ordered queue; nothing here changes the state.
Begin with ``pull.py``, then ``read.py``.
"""
