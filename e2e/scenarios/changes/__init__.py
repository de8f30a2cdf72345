"""
Scenarios of changes: people edit objects, and Clusters follow while messages flow.

Faults that nobody wants are in `faults`.
Begin with `test_rolling_update`.
"""
