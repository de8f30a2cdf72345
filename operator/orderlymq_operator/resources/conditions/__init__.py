"""
The reasons that conditions give, each with its meaning and its cure.

`plan` and `kube.reconcile` decide when a reason is given. Begin with `table`, which has all of them;
docs/reference/conditions.md is generated from it.
"""
