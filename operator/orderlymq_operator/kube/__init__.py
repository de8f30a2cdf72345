"""
The Kubernetes backend: the operator process, which makes clusters from custom resources.

Nothing here knows what a plan decides (`plan`) or how a broker is asked (`brokers`).
Begin with `app`: `watch` wakes `workqueue`, whose workers call `reconcile.cluster` and `reconcile.pipeline`.
"""
