"""Reconciles of Backups and ScheduledBackups, and the restore of a new Cluster from a backup.

Only these modules write objects of backups. Begin with `backup`. `times` computes due times, `bootstrap` restores.
"""
