"""
Observed state: custom resources, objects, pods, nodes and secrets, as they were read.

Nothing here writes to the API server or to a broker, and nothing decides what to do.
Begin with `cluster` (the objects and pods of one Cluster) and `inventory` (the custom resources).
"""
