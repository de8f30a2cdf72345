"""
The base of every processor: effects, context, entries, sessions, and the offsets that a leader gives.

A full disk refuses a send in ``capacity.py``. Not here: the handlers of request codes; those are in
``processors/``, which imports this room. Begin with ``effects.py``, then ``requestcontext.py`` and ``entrybuilder.py``.
"""
