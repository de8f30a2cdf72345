"""
Scenarios of changes: users edit objects, and Clusters follow while messages flow.

Faults are in `faults`.
Begin with `test_rolling_update`.
"""
