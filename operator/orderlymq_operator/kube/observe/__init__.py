"""
Observed state: custom resources, objects, pods, nodes and secrets, as the operator last read them.

Nothing here decides what to do. Only `credentials` writes: it makes Secrets that do not exist yet.
Begin with `cluster` (the objects and pods of one Cluster) and `inventory` (the custom resources).
"""
