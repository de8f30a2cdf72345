"""
The order oracle: records what clients did and judges whether order was kept.

Users, tests and demos use it. No client needs it to send or to consume, and it imports no other folder of the SDK.
Begin with `verdict.py`.
"""
