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
        "See that the operator runs and watches this namespace.",
    ),
    Reason("Ready", (CLUSTER,), READY, "True", "Every group has a leader and all its replicas."),
    Reason("Synced", _PARTS, READY, "True", "Effective in every raft group."),
    Reason(
        "Progressing",
        _WORKED_ON,
        (*READY, "Progressing"),
        "False",
        "The operator is at work on it; the message names the step. "
        "As reason of the condition Progressing the status is True.",
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
        "There is no Cluster of the name in clusterRef.",
        "Create the Cluster, or correct clusterRef; the operator notices either immediately.",
    ),
    Reason(
        "NamespaceNotAllowed",
        (*_PARTS, PIPELINE),
        READY,
        "False",
        "The Cluster of clusterRef is in another namespace and does not allow this one. The object changes nothing there.",
        "Let the owner of the Cluster add the namespace to spec.allowedNamespaces, or name a Cluster of the own namespace.",
    ),
    Reason(
        "FieldNotAllowed",
        (PIPELINE,),
        READY,
        "False",
        "A field would give the driver rights that a Pipeline must not have; the message names it. Nothing of the "
        "Pipeline runs.",
        "Take the field out, or let the operator's owner allow it: pipelines.allowedImages, pipelines.allowedSettings.",
    ),
    Reason(
        "Conflict",
        _PARTS,
        READY,
        "False",
        "An older object declares the same name in the same Cluster, and the oldest wins.",
        "Delete one of the two; the other one follows by itself.",
    ),
    Reason(
        "ResourceConflict",
        (CLUSTER, TOPIC, CONSUMER_GROUP),
        READY,
        "False",
        "The objects in the brokers cannot become as declared.",
        "Do what the message says; until then the object is left alone.",
    ),
    Reason(
        "InUse",
        (CONSUMER_GROUP,),
        READY,
        "False",
        "The object is being deleted with deletionPolicy Delete, and members of the group hold queue locks or lanes. "
        "The finalizer waits for them, and the message has a broker's words.",
        "Stop the group's consumers; or set deletionPolicy to Retain, and the brokers keep the group.",
    ),
    Reason(
        "BrokerUnavailable",
        _PARTS,
        READY,
        "False",
        "A raft group or the name servers do not answer, or a raft group refuses to; the message has its words.",
        "Look at the Cluster's conditions.",
    ),
    Reason(
        "SecretMissing",
        (CLUSTER, USER),
        READY,
        "False",
        "The Secret, its key, or a usable value in it is missing: of a Cluster that of tls.secretName, without which "
        "no pod starts, or of security.internalIssuer, without which no new group does; or one that the operator made and somebody deleted or changed. "
        "No pod that runs is replaced meanwhile.",
        "Create the Secret: tls.crt, tls.key and ca.crt for a Cluster; for a User a secret key of six characters to 3,000 bytes, in a Secret whose name is not kept for Clusters. Restore CLUSTER-identity or CLUSTER-operator as it was.",
    ),
    Reason(
        "ExpansionWaiting",
        (TOPIC,),
        READY,
        "False",
        "The expansion has not begun, because writes would be refused in vain; the message says what is in the way.",
        "Do what the message says: let the consumers catch up, release keys, end transactions. Writes are open meanwhile.",
    ),
    Reason(
        "ExpansionFencing",
        (TOPIC,),
        READY,
        "False",
        "Writes are refused for a moment and a barrier is set in every queue.",
    ),
    Reason(
        "ExpansionDraining",
        (TOPIC,),
        READY,
        "False",
        "Writes are refused until every ordered group is past the barriers; status.expansion.blockers names who is not.",
        "Start or speed up the consumers that are named; after drainTimeout the expansion is aborted for now.",
    ),
    Reason(
        "ExpansionSwitching",
        (TOPIC,),
        READY,
        "False",
        "The new queue list becomes valid everywhere.",
    ),
    Reason(
        "ExpansionPropagating",
        (TOPIC,),
        READY,
        "False",
        "Only senders that know the new queue list are served, until all can know it.",
    ),
    Reason(
        "ExpansionAborted",
        (TOPIC,),
        READY,
        "False",
        "The expansion was aborted for now, writes are open again with the previous queues.",
        "Let the consumers that are named catch up; it is tried again by itself.",
    ),
    Reason(
        "NameServerUnavailable",
        (CLUSTER,),
        READY,
        "False",
        "A name server does not answer, or has previous settings.",
        "Look at its pod.",
    ),
    Reason(
        "GroupNotReady",
        (CLUSTER,),
        READY,
        "False",
        "A raft group has no leader, lacks replicas or runs previous settings; the message says which.",
        "Nothing while Progressing is True; otherwise look at the pods of the group.",
    ),
    Reason(
        "ImageUnavailable",
        _PODS,
        READY,
        "False",
        "A pod's image does not exist or cannot be pulled, or its registry asks for credentials.",
        "Correct spec.image, load the image, or name the Secret of a private registry in spec.imagePullSecrets. Then pods "
        "that lack the image are made again, those of Jobs included, and a scheduled run makes room for the next one; "
        "no other pod is replaced meanwhile.",
    ),
    Reason(
        "Unschedulable",
        _PODS,
        READY,
        "False",
        "No node has room for a pod or may run it.",
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
        "A pod does not start or ends again and again.",
        "Read its log and events; the message has the last exit.",
    ),
    Reason(
        "Forbidden",
        (*_PODS, BACKUP, SCHEDULED_BACKUP),
        READY,
        "False",
        "The operator lacks a right in the API server.",
        "Grant what the message names; the chart's rights (charts/orderlymq/files/rights) have all of it.",
    ),
    Reason(
        "NameTaken",
        _PODS,
        READY,
        "False",
        "An object that is made for this one would have the name of somebody else's, which is not touched.",
        "Rename or delete the object that the message names, or give this one another name.",
    ),
    Reason(
        "ApiRefused",
        (*_PODS, BACKUP, SCHEDULED_BACKUP),
        READY,
        "False",
        "The API server refused an object that is made for this one, or a pod of it.",
        "The message is the API server's own; a quota or an admission rule is the usual cause.",
    ),
    Reason(
        "BudgetsOverlap",
        (CLUSTER,),
        READY,
        "False",
        "More than one PodDisruptionBudget selects a pod that is to be replaced. Kubernetes evicts no such pod, so it stays "
        "as it is.",
        "Delete the budget that is not the operator's, or let its selector leave out the pods of the Cluster.",
    ),
    Reason(
        "DriverRunning",
        (PIPELINE,),
        READY,
        "True",
        "The driver runs, for as long as it is let.",
    ),
    Reason(
        "Scheduled",
        (PIPELINE, SCHEDULED_BACKUP),
        READY,
        "True",
        "Runs or Backups begin by spec.schedule; the last one did not fail.",
    ),
    Reason(
        "Finished", (PIPELINE,), READY, "True", "The run succeeded; status.result has its result."
    ),
    Reason(
        "Suspended",
        (PIPELINE, SCHEDULED_BACKUP),
        READY,
        "False",
        "spec.suspend is true: no driver runs, or the last one is ending; no Backup begins.",
        "Set spec.suspend to false; a Pipeline goes on from its checkpoint.",
    ),
)
