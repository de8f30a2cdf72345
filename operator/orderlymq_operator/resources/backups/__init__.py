"""
Manifests of backups: where they are kept, when they are made, which one a Cluster begins with.

No objects and no decisions live here. Begin with `backup`; `destination` is what all of them name.
"""
