"""
The base of every processor: effects, context, entries, sessions, and the offsets that a leader gives.

``capacity.py`` refuses sends when the disk is full. The handlers of request codes are in ``processors/``,
which imports this package. Begin with ``effects.py``, then ``requestcontext.py`` and ``entrybuilder.py``.
"""
