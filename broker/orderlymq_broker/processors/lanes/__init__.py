"""
Key lanes as members see them: fetches, reports of attempts, and the leader's lease clocks.

The tables that survive a change of leader are in ``state/lanes/``; a failed attempt parks its lane there. Begin with
``fetch.py``.
"""
