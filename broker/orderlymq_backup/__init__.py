"""
Backups of a cluster: made while it serves, kept in a folder or an S3-compatible store, verified, restored.

Nothing here runs inside a broker: the broker provides a copy of its store, and the operator handles the
Kubernetes objects of backups. Begin with ``manifest.py``, which defines what a backup is;
``docs/adr/0023-backups.md`` gives the reasons.
"""
