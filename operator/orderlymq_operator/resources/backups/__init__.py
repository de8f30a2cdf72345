"""
Manifests of backups: where they are kept, when they are made, which one a Cluster begins with.

This package makes no objects and no decisions. Begin with `backup`; all kinds use `destination`.
"""
