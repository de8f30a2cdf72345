"""
What manifests say of backups: where they are kept, when they are made, what a Cluster begins with.

No objects and no decisions live here. Begin with `backup`; `destination` is what all of them name.
"""
