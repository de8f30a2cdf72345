"""
HTTP: who may sign in, which page answers which address, and how a page becomes HTML, JSON or a stream of events.

Begin with `views.py`, the list of pages; `guard.py` checks each request before them.
"""
