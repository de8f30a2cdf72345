"""
Key lanes as members see them: what a fetch gets, what is said about attempts, and the leader's clock of leases.

What survives the leader is in ``state/lanes/``. Begin with ``fetch.py``.
"""
