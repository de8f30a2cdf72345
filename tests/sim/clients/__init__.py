"""
Everybody who uses the simulated group: producers, consumers, administrators, an operator, an auditor.

What must hold of their work is in `invariants`.
Begin with `client`.
"""
