"""
A real cluster in the process of a test, with faults on demand and the oracle's verdict at the end.

The SDK and the servers must not depend on this package, and it judges no order itself: the oracle does.
Begin with `plugin.py`, which has the fixture; `cluster.py` has the methods that a test may call.
"""
