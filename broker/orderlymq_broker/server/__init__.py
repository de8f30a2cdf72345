"""
The broker as its environment sees it: client connections, the group's address, registration, health and status.

Not here: what a request about messages means (processors) and what replicas say to each other (replication). The death of a
client of this machine is proven in `clientdeath`.
Begin with `router`, which decides who answers a request; `leadership` says what clients see of a new leader.
"""
