"""
A real cluster in the process of a test, with faults on demand and the oracle's verdict at the end.

Nothing of the SDK or the servers may need it, and it judges no order itself: the oracle does.
Begin with `plugin.py`, which has the fixture; `cluster.py` has what a test may do with it.
"""
