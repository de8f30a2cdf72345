"""The reasons that conditions give for backups and restores."""

from typing import Final

from orderlymq_operator.resources.conditions.reason import (
    BACKUP,
    CLUSTER,
    READY,
    SCHEDULED_BACKUP,
    Reason,
)

REASONS: Final = (
    Reason(
        "BackupComplete",
        (BACKUP,),
        READY,
        "True",
        "The backup is stored; status.backupId names it, and status.groups shows the position of each broker group.",
    ),
    Reason(
        "BackupRunning",
        (BACKUP,),
        READY,
        "False",
        "A Job makes the backup; the message describes its attempts.",
    ),
    Reason(
        "BackupWaiting",
        (BACKUP,),
        READY,
        "False",
        "The Backup waits for another Backup of the same Cluster, or until the Cluster serves; the message says which.",
        "",
    ),
    Reason(
        "BackupFailed",
        (BACKUP, SCHEDULED_BACKUP),
        READY,
        "False",
        "All attempts have failed; the message is the error of the last one. A failed backup cannot be restored. On a "
        "ScheduledBackup: its last Backup failed.",
        "Fix what the message names, then create a new Backup; the pods of the Job and their logs are kept for a day.",
    ),
    Reason(
        "BackupOverdue",
        (SCHEDULED_BACKUP,),
        READY,
        "False",
        "A Backup has not ended although the next one is due; the next one begins when it ends.",
        "Look at the Backup that the message names, and at its pod; give it more resources, or delete it.",
    ),
    Reason(
        "DeletingStored",
        (BACKUP,),
        READY,
        "False",
        "The Backup is being deleted, and a Job deletes its stored data.",
    ),
    Reason(
        "DeletionFailed",
        (BACKUP,),
        READY,
        "False",
        "The stored data cannot be deleted; the operator tries again.",
        "Fix what the message names, or set spec.deletionPolicy to Retain: then the Backup is deleted and its stored data is "
        "kept.",
    ),
    Reason(
        "Restoring",
        (CLUSTER,),
        ("Ready", "Restored"),
        "False",
        "The replicas are being restored from the backup of spec.bootstrap; no broker runs yet. The message says what the "
        "operator waits for.",
    ),
    Reason(
        "RestoreFailed",
        (CLUSTER,),
        ("Ready", "Restored"),
        "False",
        "The backup of spec.bootstrap cannot be restored; the message says why. The operator tries again and starts no broker "
        "before.",
        "Fix what the message names. If the manifest is wrong, delete the Cluster and create it again.",
    ),
    Reason(
        "RestoredFromBackup",
        (CLUSTER,),
        ("Restored",),
        "True",
        "The Cluster was restored from a backup; status.restored names it. No replica will be restored again.",
    ),
)
