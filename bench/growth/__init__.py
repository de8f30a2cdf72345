"""
Measures the cost of a message while one thing grows by decades: topics, queues, groups, members, connections, keys, backlog.

``dimensions`` says what grows and how, ``load`` sends the same work at each decade and takes the figures, ``page`` writes
the page that ``--write`` names. Nothing of the product may depend on this room. Begin with ``__main__.py``.
"""
