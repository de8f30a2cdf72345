"""Reconciles of Backups and ScheduledBackups, and the restore that a new Cluster begins with.

Only these modules write objects of backups. Begin with `backup`; `times` says when a schedule is due, `bootstrap` restores.
"""
