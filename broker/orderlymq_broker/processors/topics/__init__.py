"""
Topics over time: the expansion of ordered topics, retention, and the topics of a fresh broker.

Creating, changing and deleting topics on request is in ``admin/topics.py``.
Begin with ``expansionrequests.py``.
"""
