"""
Backups of a cluster: made while it serves, kept in a folder or an S3-compatible store, verified, restored.

Begin with ``manifest.py``, which says what a backup is; ``docs/adr/0023-backups.md`` says why.
"""
