"""
HTTP: who may come in, which page answers which address, how a page becomes HTML, JSON or a stream of events.

Begin with `views.py`, the list of pages; `guard.py` stands before all of them.
"""
