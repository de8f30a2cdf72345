"""
One reconcile: observe, plan, apply, report.

Nothing here defines objects (`objects`) or decides about brokers (`plan`).
Begin with `cluster`: it calls `observe.cluster`, `plan.planner`, `executor` and `writer` in this order.
"""
