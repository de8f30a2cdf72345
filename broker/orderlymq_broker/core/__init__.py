"""
What every processor stands on: effects, context, entries, sessions, and the offsets that a leader gives.

A full disk refuses a send in ``capacity.py``. Nothing here knows a request code's handler: those are in ``processors/``, which imports this room and is
never imported by it. Begin with ``effects.py``, then ``context.py`` and ``entries.py``.
"""
