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
        "The backup is stored; status.backupId names it, and status.groups says where each broker group stood.",
    ),
    Reason(
        "BackupRunning",
        (BACKUP,),
        READY,
        "False",
        "A Job makes the backup; the message says how its attempts went.",
    ),
    Reason(
        "BackupWaiting",
        (BACKUP,),
        READY,
        "False",
        "Another Backup of the same Cluster comes first, or the Cluster does not serve; the message says which.",
        "",
    ),
    Reason(
        "BackupFailed",
        (BACKUP, SCHEDULED_BACKUP),
        READY,
        "False",
        "All attempts have failed; the message has the sentence of the last one. Nothing of such a backup counts. "
        "A ScheduledBackup says it of its last Backup.",
        "Cure what the message says, then make a new Backup; the pods of the Job and their logs stay for a day.",
    ),
    Reason(
        "BackupOverdue",
        (SCHEDULED_BACKUP,),
        READY,
        "False",
        "A Backup has not ended although the next one is due; none begins before it ends.",
        "See what the Backup that the message names says, and its pod; give it room, or delete it.",
    ),
    Reason(
        "DeletingStored",
        (BACKUP,),
        READY,
        "False",
        "The Backup is being deleted, and a Job deletes what is stored of it.",
    ),
    Reason(
        "DeletionFailed",
        (BACKUP,),
        READY,
        "False",
        "The stored data cannot be deleted now; the operator tries again.",
        "Cure what the message says, or set spec.deletionPolicy to Retain: then the Backup goes and the rest "
        "stays.",
    ),
    Reason(
        "Restoring",
        (CLUSTER,),
        ("Ready", "Restored"),
        "False",
        "The replicas are restored from the backup of spec.bootstrap; no broker runs yet. The message says what is "
        "waited for.",
    ),
    Reason(
        "RestoreFailed",
        (CLUSTER,),
        ("Ready", "Restored"),
        "False",
        "The backup of spec.bootstrap cannot be restored as things are; the message says why. It is tried again, "
        "and no broker runs before.",
        "Cure what the message says. Where the manifest is wrong, delete the Cluster and create it again.",
    ),
    Reason(
        "RestoredFromBackup",
        (CLUSTER,),
        ("Restored",),
        "True",
        "The Cluster began with a backup; status.restored names it. No replica is restored again.",
    ),
)
