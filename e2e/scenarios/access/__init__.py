"""
Scenarios of access: who may do what, from where, and with which secrets.

Operation without rights and secrets is in the other rooms.
Begin with `test_secured`.
"""
