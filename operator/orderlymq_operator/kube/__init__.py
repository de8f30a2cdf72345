"""
The Kubernetes backend: the operator process, which makes clusters from custom resources.

`plan` makes the decisions and `brokers` sends requests to brokers; nothing here does either.
Begin with `app`: `watch` wakes `workqueue`, whose workers call `reconcile.cluster` and `reconcile.pipeline`.
"""
