"""The reasons of the condition Ready, which every kind has; `backups` and `pipelines` have further ones."""

from typing import Final

from orderlymq_operator.resources.conditions.reason import (
    BACKUP,
    CLUSTER,
    CONSUMER_GROUP,
    PIPELINE,
    READY,
    SCHEDULED_BACKUP,
    TOPIC,
    USER,
    Reason,
)

_WORKED_ON: Final = (CLUSTER, TOPIC, CONSUMER_GROUP, USER, PIPELINE)
_ALL: Final = (*_WORKED_ON, BACKUP, SCHEDULED_BACKUP)
_PARTS: Final = (TOPIC, CONSUMER_GROUP, USER)
_PODS: Final = (CLUSTER, PIPELINE)

REASONS: Final = (
    Reason(
        "Pending",
        _ALL,
        READY,
        "Unknown",
        "No operator has looked at the object yet.",
        "Make sure that the operator runs and watches this namespace.",
    ),
    Reason("Ready", (CLUSTER,), READY, "True", "Every group has a leader and all its replicas."),
    Reason("Synced", _PARTS, READY, "True", "Effective in every raft group."),
    Reason(
        "Progressing",
        _WORKED_ON,
        (*READY, "Progressing"),
        "False",
        "The operator is working on the object; the message names the step. As reason of the condition Progressing, the "
        "status is True.",
    ),
    Reason(
        "Invalid",
        _ALL,
        READY,
        "False",
        "The manifest cannot be used as it is; the message names the field.",
        "Correct the manifest.",
    ),
    Reason(
        "ClusterNotFound",
        (*_PARTS, PIPELINE, BACKUP),
        READY,
        "False",
        "The Cluster that clusterRef names does not exist.",
        "Create the Cluster, or correct clusterRef; the operator notices either immediately.",
    ),
    Reason(
        "NamespaceNotAllowed",
        (*_PARTS, PIPELINE),
        READY,
        "False",
        "The Cluster that clusterRef names is in another namespace and does not allow this one. The object has no effect "
        "there.",
        "Ask the owner of the Cluster to add the namespace to spec.allowedNamespaces, or name a Cluster in the object's own "
        "namespace.",
    ),
    Reason(
        "FieldNotAllowed",
        (PIPELINE,),
        READY,
        "False",
        "A field would give the driver rights that a Pipeline must not have; the message names it. The Pipeline does not run.",
        "Remove the field, or ask the operator's owner to allow it with the chart's values pipelines.allowedImages and "
        "pipelines.allowedSettings.",
    ),
    Reason(
        "Conflict",
        _PARTS,
        READY,
        "False",
        "An older object declares the same name in the same Cluster, and the oldest wins.",
        "Delete one of the two; the operator then uses the other.",
    ),
    Reason(
        "ResourceConflict",
        (CLUSTER, TOPIC, CONSUMER_GROUP),
        READY,
        "False",
        "The object in the brokers cannot be changed to match the spec.",
        "Do what the message says; until then the operator changes nothing.",
    ),
    Reason(
        "InUse",
        (CONSUMER_GROUP,),
        READY,
        "False",
        "The object is being deleted with deletionPolicy Delete, and members of the group hold queue locks or lanes. The "
        "finalizer waits for them, and the message quotes a broker.",
        "Stop the group's consumers; or set deletionPolicy to Retain, and the brokers keep the group.",
    ),
    Reason(
        "BrokerUnavailable",
        _PARTS,
        READY,
        "False",
        "A raft group or the name servers do not answer, or a raft group refuses the request; the message quotes it.",
        "Look at the Cluster's conditions.",
    ),
    Reason(
        "SecretMissing",
        (CLUSTER, USER),
        READY,
        "False",
        "A Secret, its key, or a usable value in it is missing. For a Cluster: the Secret of tls.secretName, without which no "
        "pod starts; that of security.internalIssuer, without which no new group starts; or one that the operator made and "
        "that was deleted or changed. Running pods are not replaced meanwhile.",
        "Create the Secret: for a Cluster with tls.crt, tls.key and ca.crt; for a User with a secret key of six characters to "
        "3,000 bytes, under a name that is not reserved for Clusters. Restore CLUSTER-identity or CLUSTER-operator with its "
        "former content.",
    ),
    Reason(
        "ExpansionWaiting",
        (TOPIC,),
        READY,
        "False",
        "The expansion has not begun, because it could not finish now; the message names the obstacle.",
        "Do what the message says: let the consumers catch up, release keys, end transactions. Writes are accepted meanwhile.",
    ),
    Reason(
        "ExpansionFencing",
        (TOPIC,),
        READY,
        "False",
        "Writes are refused for a short time while the brokers set a barrier in every queue.",
    ),
    Reason(
        "ExpansionDraining",
        (TOPIC,),
        READY,
        "False",
        "Writes are refused until every ordered consumer group is past the barriers; status.expansion.blockers names those "
        "that are not.",
        "Start or speed up these consumers; after drainTimeout the expansion is aborted and tried again later.",
    ),
    Reason(
        "ExpansionSwitching",
        (TOPIC,),
        READY,
        "False",
        "The brokers and name servers switch to the new queue list.",
    ),
    Reason(
        "ExpansionPropagating",
        (TOPIC,),
        READY,
        "False",
        "Until all senders can know the new queue list, only those that know it are served.",
    ),
    Reason(
        "ExpansionAborted",
        (TOPIC,),
        READY,
        "False",
        "The expansion was aborted and is tried again later; writes to the previous queues are accepted again.",
        "Let the consumers that the message names catch up; the operator tries again by itself.",
    ),
    Reason(
        "NameServerUnavailable",
        (CLUSTER,),
        READY,
        "False",
        "A name server does not answer, or still runs with the previous settings.",
        "Look at its pod.",
    ),
    Reason(
        "GroupNotReady",
        (CLUSTER,),
        READY,
        "False",
        "A raft group has no leader, lacks replicas, or still runs with the previous settings; the message says which.",
        "Nothing if Progressing is True; otherwise look at the pods of the group.",
    ),
    Reason(
        "ImageUnavailable",
        _PODS,
        READY,
        "False",
        "A pod's image does not exist or cannot be pulled, or its registry asks for credentials.",
        "Correct spec.image, load the image, or name the Secret of a private registry in spec.imagePullSecrets. The operator "
        "then recreates the pods that lack the image, including those of Jobs, and a scheduled run ends for the next one; no "
        "other pod is replaced meanwhile.",
    ),
    Reason(
        "Unschedulable",
        _PODS,
        READY,
        "False",
        "No node has room for a pod, or none is allowed to run it.",
        "Add a node, or lower requests, or loosen spec.placement.",
    ),
    Reason(
        "VolumePending",
        _PODS,
        (*READY, "StorageReady"),
        "False",
        "A volume claim cannot be bound.",
        "Create the StorageClass or the volume; spec.storage.className cannot be changed later.",
    ),
    Reason(
        "PodFailing",
        _PODS,
        READY,
        "False",
        "A pod does not start, or ends repeatedly.",
        "Read its log and events; the message has the last exit code.",
    ),
    Reason(
        "Forbidden",
        (*_PODS, BACKUP, SCHEDULED_BACKUP),
        READY,
        "False",
        "The operator lacks a permission on the API server.",
        "Grant the permission that the message names; the chart's rights (charts/orderlymq/files/rights) contain all of them.",
    ),
    Reason(
        "NameTaken",
        _PODS,
        READY,
        "False",
        "The operator needs to create an object whose name is already used by an object that it does not own; it does not "
        "touch that one.",
        "Rename or delete the object that the message names, or use another name for this one.",
    ),
    Reason(
        "ApiRefused",
        (*_PODS, BACKUP, SCHEDULED_BACKUP),
        READY,
        "False",
        "The API server refused an object that the operator creates for this one, or a pod of it.",
        "The message quotes the API server; the usual cause is a quota or an admission rule.",
    ),
    Reason(
        "BudgetsOverlap",
        (CLUSTER,),
        READY,
        "False",
        "More than one PodDisruptionBudget selects a pod that must be replaced. Kubernetes does not evict such a pod, so it "
        "is not replaced.",
        "Delete the budget that is not the operator's, or change its selector so that it excludes the pods of the Cluster.",
    ),
    Reason(
        "DriverRunning",
        (PIPELINE,),
        READY,
        "True",
        "The driver runs until it is stopped.",
    ),
    Reason(
        "Scheduled",
        (PIPELINE, SCHEDULED_BACKUP),
        READY,
        "True",
        "Runs or Backups begin as spec.schedule says; the last one did not fail.",
    ),
    Reason(
        "Finished", (PIPELINE,), READY, "True", "The run succeeded; status.result has its result."
    ),
    Reason(
        "Suspended",
        (PIPELINE, SCHEDULED_BACKUP),
        READY,
        "False",
        "spec.suspend is true. Pipeline: no driver runs, or the last one is ending. ScheduledBackup: no Backup begins.",
        "Set spec.suspend to false; a Pipeline continues from its checkpoint.",
    ),
)
