"""
Key lanes as members see them: what a fetch gets, what is said about attempts, and the leader's clock of leases.

What survives the leader is in ``state/lanes/``, where a failed attempt parks its lane. Begin with ``fetch.py``.
"""
