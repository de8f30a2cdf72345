"""
The broker's contact with its environment: client connections, its group's address, registration, health and status.

Other packages decide what a request about messages means (processors) and what replicas send to each other
(replication). `clientdeath` proves that a client on this machine is dead.
Begin with `router`, which decides who answers a request; `leadership` says what clients see of a new leader.
"""
