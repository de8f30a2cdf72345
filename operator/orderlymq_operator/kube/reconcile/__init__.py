"""
One reconcile: observe, plan, apply, report.

`objects` defines the objects and `plan` makes the decisions about brokers; nothing here does either.
Begin with `cluster`: it calls `observe.cluster`, `plan.planner`, `executor` and `writer` in this order.
"""
