"""
The Kubernetes backend: the operator process, which makes clusters from custom resources.

`python -m orderlymq_operator.kube` runs it. `watching` only wakes `workqueue`; `reconciler` makes one pass over one
cluster: read live objects, ask the planner, apply.
"""
