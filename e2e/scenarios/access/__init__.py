"""
Scenarios of access: who may do what, from where, and with which secrets.

Scenarios that need no rights and secrets are in the other folders.
Begin with `test_secured`.
"""
