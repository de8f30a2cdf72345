"""
Pipeline cdc-apply: change events of a database into a Delta table.

Begin with `job`; `events` reads events and is pure.
"""
