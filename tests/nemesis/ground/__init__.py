"""
The ground of a run's processes: addresses, links, disks, namespaces.

`schedule` decides when each fault comes.
Begin with `ground`.
"""
