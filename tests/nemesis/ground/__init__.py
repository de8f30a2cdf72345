"""
The ground of a run's processes: addresses, links, disks, namespaces.

`schedule` decides which fault comes when.
Begin with `ground`.
"""
