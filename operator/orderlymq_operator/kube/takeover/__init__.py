"""
Gives the queues of a dead consumer to another consumer before the lease of their locks ends.

Nothing here deletes a pod or changes a Cluster's objects.
Begin with `handover` (what the operator does), then `proof` (what proves that a consumer is dead).
"""
