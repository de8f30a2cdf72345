"""
How queues of a dead consumer go to another before its lease ends.

Nothing here deletes a pod or touches a Cluster's objects.
Begin with `handover` (what is done), then `proof` (what counts as the death of a consumer).
"""
