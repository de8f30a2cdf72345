"""
Measures a message's cost while one thing grows by decades: topics, queues, groups, members, connections, keys, backlog.

``dimensions`` defines what grows, ``load`` runs the same work at each decade and measures it, ``page`` writes the page
for ``--write``. Production code must not depend on this package. Begin with ``__main__.py``.
"""
