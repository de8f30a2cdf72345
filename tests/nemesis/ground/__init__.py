"""
What the processes of a run stand on: addresses, links, disks, namespaces.

Which fault comes when is decided in `schedule`.
Begin with `ground`.
"""
