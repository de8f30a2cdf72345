"""
Topics over time: the expansion of ordered topics, retention, and the topics of a fresh broker.

Requests that create, change and delete topics are in ``admin/topics.py``.
Begin with ``expansionrequests.py``.
"""
