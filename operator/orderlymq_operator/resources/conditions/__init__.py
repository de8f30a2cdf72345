"""
The reasons that conditions give, each with its meaning and its cure.

When a reason is given is decided by `plan` and `kube.reconcile`, not here.
Begin with `table`, which has all of them; docs/reference/conditions.md is made from it.
"""
