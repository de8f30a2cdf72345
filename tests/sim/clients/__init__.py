"""
All users of the simulated broker group: producers, consumers, administrators, an operator, an auditor.

`invariants` holds the laws of their work.
Begin with `client`.
"""
