"""
Backups of a cluster: made while it serves, kept in a folder or an S3-compatible store, verified, restored.

Nothing here runs inside a broker: the broker gives its store out, and Kubernetes objects of backups belong to the operator.
Begin with ``manifest.py``, which says what a backup is; ``docs/adr/0023-backups.md`` says why.
"""
