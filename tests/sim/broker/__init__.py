"""
The simulated processes: replicas with the real cores, name servers, disks.

Nothing here judges.
Begin with `replica`.
"""
