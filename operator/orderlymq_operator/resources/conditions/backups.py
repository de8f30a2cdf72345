"""
The reasons that conditions give for backups and restores; `conditions` has the table that they are part of.

Each is name, kinds, conditions, status, meaning and cure, as `conditions.Reason` has them.
"""

from typing import Final

CLUSTER: Final = "Cluster"
BACKUP: Final = "Backup"
SCHEDULED_BACKUP: Final = "ScheduledBackup"

REASONS: Final[tuple[tuple[str, tuple[str, ...], tuple[str, ...], str, str, str], ...]] = (
    (
        "BackupComplete",
        (BACKUP,),
        ("Ready",),
        "True",
        "The backup is stored; status.backupId names it, and status.groups says where each broker group stood.",
        "",
    ),
    (
        "BackupRunning",
        (BACKUP,),
        ("Ready",),
        "False",
        "A Job makes the backup; the message says how its attempts went.",
        "",
    ),
    (
        "BackupWaiting",
        (BACKUP,),
        ("Ready",),
        "False",
        "Another Backup of the same Cluster comes first, or the Cluster does not serve; the message says which.",
        "",
    ),
    (
        "BackupFailed",
        (BACKUP, SCHEDULED_BACKUP),
        ("Ready",),
        "False",
        "All attempts have failed; the message has the sentence of the last one. Nothing of such a backup counts. "
        "A ScheduledBackup says it of its last Backup.",
        "Cure what the message says, then make a new Backup; the pods of the Job and their logs stay for a day.",
    ),
    (
        "DeletingStored",
        (BACKUP,),
        ("Ready",),
        "False",
        "The Backup is being deleted, and a Job deletes what is stored of it.",
        "",
    ),
    (
        "DeletionFailed",
        (BACKUP,),
        ("Ready",),
        "False",
        "What is stored cannot be deleted now; it is tried again.",
        "Cure what the message says, or set spec.deletionPolicy to Retain: then the Backup goes and the rest "
        "stays.",
    ),
    (
        "Restoring",
        (CLUSTER,),
        ("Ready", "Restored"),
        "False",
        "The replicas are restored from the backup of spec.bootstrap; no broker runs yet. The message says what is "
        "waited for.",
        "",
    ),
    (
        "RestoreFailed",
        (CLUSTER,),
        ("Ready", "Restored"),
        "False",
        "The backup of spec.bootstrap cannot be restored as things are; the message says why. It is tried again, "
        "and no broker runs before.",
        "Cure what the message says. Where the manifest is wrong, delete the Cluster and create it again.",
    ),
    (
        "RestoredFromBackup",
        (CLUSTER,),
        ("Restored",),
        "True",
        "The Cluster began with a backup; status.restored names it. No replica is restored again.",
        "",
    ),
)
