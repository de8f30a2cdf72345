"""
Every reason that a condition may give, with its explanation; the table of docs/reference/conditions.md.

Rule: no other reason is written, and a reason goes when its cause goes. Tests compare this table with the docs and with
what the code writes.
"""

from dataclasses import dataclass
from typing import Final

from orderlymq_operator.resources.cluster.canary import ORDER_REASONS
from orderlymq_operator.resources.conditions import backups, pipelines

CLUSTER: Final = backups.CLUSTER
TOPIC: Final = "Topic"
CONSUMER_GROUP: Final = "ConsumerGroup"
USER: Final = "User"
PIPELINE: Final = pipelines.PIPELINE
BACKUP: Final = backups.BACKUP
SCHEDULED_BACKUP: Final = backups.SCHEDULED_BACKUP
_WORKED_ON: Final = (CLUSTER, TOPIC, CONSUMER_GROUP, USER, PIPELINE)
_ALL: Final = (*_WORKED_ON, BACKUP, SCHEDULED_BACKUP)
_PARTS: Final = (TOPIC, CONSUMER_GROUP, USER)
_PODS: Final = (CLUSTER, PIPELINE)


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason.

    Attributes:
        conditions: types of the conditions that give it.
        status: the status that such a condition has.
        meaning: what is the case.
        cure: what a person can do; empty when there is nothing to do.
    """

    name: str
    kinds: tuple[str, ...]
    conditions: tuple[str, ...]
    status: str
    meaning: str
    cure: str = ""


_READY: Final = ("Ready",)

REASONS: Final = (
    Reason(
        "Pending",
        _ALL,
        _READY,
        "Unknown",
        "No operator has looked at the object yet.",
        "See that the operator runs and watches this namespace.",
    ),
    Reason("Ready", (CLUSTER,), _READY, "True", "Every group has a leader and all its replicas."),
    Reason("Synced", _PARTS, _READY, "True", "Effective in every raft group."),
    Reason(
        "Progressing",
        _WORKED_ON,
        (*_READY, "Progressing"),
        "False",
        "The operator is at work on it; the message names the step. "
        "As reason of the condition Progressing the status is True.",
    ),
    Reason(
        "Invalid",
        _ALL,
        _READY,
        "False",
        "The manifest cannot be used as it is; the message names the field.",
        "Correct the manifest.",
    ),
    Reason(
        "ClusterNotFound",
        (*_PARTS, PIPELINE, BACKUP),
        _READY,
        "False",
        "There is no Cluster of the name in clusterRef.",
        "Create the Cluster, or correct clusterRef; the operator notices either immediately.",
    ),
    Reason(
        "NamespaceNotAllowed",
        (*_PARTS, PIPELINE),
        _READY,
        "False",
        "The Cluster of clusterRef is in another namespace and does not allow this one. The object changes nothing there.",
        "Let the owner of the Cluster add the namespace to spec.allowedNamespaces, or name a Cluster of the own namespace.",
    ),
    Reason(
        "FieldNotAllowed",
        (PIPELINE,),
        _READY,
        "False",
        "A field would give the driver rights that a Pipeline must not have; the message names it. Nothing of the "
        "Pipeline runs.",
        "Take the field out, or let the operator's owner allow it: pipelines.allowedImages, pipelines.allowedSettings.",
    ),
    Reason(
        "Conflict",
        _PARTS,
        _READY,
        "False",
        "An older object declares the same name in the same Cluster, and the oldest wins.",
        "Delete one of the two; the other one follows by itself.",
    ),
    Reason(
        "ResourceConflict",
        (CLUSTER, TOPIC, CONSUMER_GROUP),
        _READY,
        "False",
        "What exists in the brokers cannot become what is declared.",
        "Do what the message says; until then the object is left alone.",
    ),
    Reason(
        "BrokerUnavailable",
        _PARTS,
        _READY,
        "False",
        "A raft group or the name servers do not answer.",
        "Look at the Cluster's conditions.",
    ),
    Reason(
        "SecretMissing",
        (CLUSTER, USER),
        _READY,
        "False",
        "The Secret, its key, or a usable value in it is missing: of a Cluster that of tls.secretName, without which "
        "no pod starts, or of security.internalIssuer, without which no new group does.",
        "Create the Secret: tls.crt, tls.key and ca.crt for a Cluster; for a User a secret key of six characters at least.",
    ),
    Reason(
        "ExpansionWaiting",
        (TOPIC,),
        _READY,
        "False",
        "The expansion has not begun: the consumers have too much before them.",
        "Let the consumers catch up; writes are open meanwhile.",
    ),
    Reason(
        "ExpansionFencing",
        (TOPIC,),
        _READY,
        "False",
        "Writes are refused for a moment and a barrier is set in every queue.",
    ),
    Reason(
        "ExpansionDraining",
        (TOPIC,),
        _READY,
        "False",
        "Writes are refused until every ordered group is past the barriers; status.expansion.blockers names who is not.",
        "Start or speed up the consumers that are named; after drainTimeout the expansion is aborted for now.",
    ),
    Reason(
        "ExpansionSwitching",
        (TOPIC,),
        _READY,
        "False",
        "The new queue list becomes valid everywhere.",
    ),
    Reason(
        "ExpansionPropagating",
        (TOPIC,),
        _READY,
        "False",
        "Only senders that know the new queue list are served, until all can know it.",
    ),
    Reason(
        "ExpansionAborted",
        (TOPIC,),
        _READY,
        "False",
        "The expansion was aborted for now, writes are open again with the previous queues.",
        "Let the consumers that are named catch up; it is tried again by itself.",
    ),
    Reason(
        "NameServerUnavailable",
        (CLUSTER,),
        _READY,
        "False",
        "A name server does not answer.",
        "Look at its pod.",
    ),
    Reason(
        "GroupNotReady",
        (CLUSTER,),
        _READY,
        "False",
        "A raft group has no leader, lacks replicas or runs previous settings; the message says which.",
        "Nothing while Progressing is True; otherwise look at the pods of the group.",
    ),
    Reason(
        "ImageUnavailable",
        _PODS,
        _READY,
        "False",
        "A pod's image cannot be pulled or does not exist.",
        "Correct spec.image or load the image; no second pod is replaced meanwhile.",
    ),
    Reason(
        "Unschedulable",
        _PODS,
        _READY,
        "False",
        "No node has room for a pod or may run it.",
        "Add a node, or lower requests, or loosen spec.placement.",
    ),
    Reason(
        "VolumePending",
        _PODS,
        (*_READY, "StorageReady"),
        "False",
        "A volume claim cannot be bound.",
        "Create the StorageClass or the volume; spec.storage.className cannot be changed later.",
    ),
    Reason(
        "PodFailing",
        _PODS,
        _READY,
        "False",
        "A pod does not start or ends again and again.",
        "Read its log and events; the message has the last exit.",
    ),
    Reason(
        "Forbidden",
        _PODS,
        _READY,
        "False",
        "The operator lacks a right in the API server.",
        "Grant what the message names; the chart's ClusterRole has all of it.",
    ),
    Reason(
        "ApiRefused",
        _PODS,
        _READY,
        "False",
        "The API server refused an object that is made for this one.",
        "The message is the API server's own; a quota or an admission rule is the usual cause.",
    ),
    Reason(
        "DriverRunning",
        (PIPELINE,),
        _READY,
        "True",
        "The driver runs, for as long as it is let.",
    ),
    Reason(
        "Scheduled",
        (PIPELINE, SCHEDULED_BACKUP),
        _READY,
        "True",
        "Runs or Backups begin by spec.schedule; the last one did not fail.",
    ),
    Reason(
        "Finished", (PIPELINE,), _READY, "True", "The run succeeded; status.result has its result."
    ),
    Reason(
        "Suspended",
        (PIPELINE, SCHEDULED_BACKUP),
        _READY,
        "False",
        "spec.suspend is true: no driver runs, or the last one is ending; no Backup begins.",
        "Set spec.suspend to false; a Pipeline goes on from its checkpoint.",
    ),
    *(Reason(*each) for each in pipelines.REASONS),
    *(Reason(*each) for each in backups.REASONS),
    Reason(
        "Paused",
        (CLUSTER,),
        ("Paused",),
        "True",
        "spec.update.mode is Paused, or the object carries the annotation orderlymq.io/pause.",
        "Set the mode to Automatic, or remove the annotation.",
    ),
    Reason(
        "NothingToConfirm",
        (CLUSTER,),
        ("Confirmed",),
        "True",
        "No edit of the Cluster waits for a confirmation.",
    ),
    Reason(
        "ConfirmationMissing",
        (CLUSTER,),
        ("Confirmed",),
        "False",
        "An edit would delete messages or copies of them; the message says which act and how to confirm it. The Cluster "
        "stays as it was before the edit, whole; its Topics, ConsumerGroups and Users are served.",
        "Take the edit back, or annotate the Cluster as the message says; an annotation holds for one edit.",
    ),
    Reason("NotPaused", (CLUSTER,), ("Paused",), "False", "Changes are carried out."),
    Reason("AllGroupsLead", (CLUSTER,), ("Available",), "True", "Every raft group has a leader."),
    Reason(
        "GroupWithoutLeader",
        (CLUSTER,),
        ("Available",),
        "False",
        "A raft group has no leader: its queues take and give nothing.",
        "See that a majority of its pods runs.",
    ),
    Reason(
        "AllReplicasHealthy",
        (CLUSTER,),
        ("QuorumHealthy",),
        "True",
        "Every replica answers, votes and has nearly the whole log.",
    ),
    Reason(
        "ReplicaMissing",
        (CLUSTER,),
        ("QuorumHealthy",),
        "False",
        "A replica does not answer, or lags; one further loss may stop its group.",
        "Look at its pod; a lost volume needs the pod and its claim deleted, the others fill it again.",
    ),
    Reason(
        "SurvivesLoss",
        (CLUSTER,),
        ("FaultTolerant",),
        "True",
        "Whichever single failure domain is lost, each group keeps a majority; the message says how many more "
        "replicas may go then.",
    ),
    Reason(
        "MajorityTogether",
        (CLUSTER,),
        ("FaultTolerant",),
        "False",
        "The loss of one node or zone would stop a group; the message names it.",
        "More replicas, nodes or zones; spec.placement.antiAffinity Required keeps new pods apart. A pod with its "
        "volume in the wrong zone moves when both are deleted, one replica at a time.",
    ),
    Reason(
        "NoListeners",
        (CLUSTER,),
        ("ListenersReady",),
        "True",
        "spec.listeners is empty: clients reach the Cluster from its own network alone.",
    ),
    Reason(
        "AddressesKnown",
        (CLUSTER,),
        ("ListenersReady",),
        "True",
        "Every listener has an address for the name servers and for each group; status.listeners has what clients are given.",
    ),
    Reason(
        "AddressMissing",
        (CLUSTER,),
        ("ListenersReady",),
        "False",
        "A Service of a listener has no address yet; the message names it. Name servers refuse routes through that listener "
        "with OutsideAddressMissing.",
        "See that balancers are made in this Kubernetes (kubectl describe service), that a node is ready, or set "
        "advertisedHost.",
    ),
    Reason(
        "NotPlaced",
        (CLUSTER,),
        ("FaultTolerant",),
        "Unknown",
        "Not every replica has a node yet, or a node lacks the label of spec.placement.",
        "Label the node, or correct topologyKey and zoneKey.",
    ),
    Reason(
        "CertificatesRenewed",
        (CLUSTER,),
        ("CertificatesCurrent",),
        "True",
        "Every replica runs with certificates that do not end soon.",
    ),
    Reason(
        "NoCertificates",
        (CLUSTER,),
        ("CertificatesCurrent",),
        "True",
        "No replica runs with certificates of the operator.",
    ),
    Reason(
        "CertificateExpires",
        (CLUSTER,),
        ("CertificatesCurrent",),
        "False",
        "A replica runs with a certificate of which less than a sixth of its life is left; the message says when it ends. "
        "Replicas with ended certificates accept no connections.",
        "End the pause (spec.update.mode, annotation orderlymq.io/pause), so that the operator replaces the pods, or delete "
        "them one at a time.",
    ),
    *(
        Reason(name, (CLUSTER,), ("OrderVerified",), status, meaning, cure)
        for name, status, meaning, cure in ORDER_REASONS
    ),
    Reason("Settled", (CLUSTER,), ("Progressing",), "False", "Nothing is left to do."),
    Reason(
        "Bound",
        (CLUSTER,),
        ("StorageReady",),
        "True",
        "Every volume is bound and has the wanted size.",
    ),
    Reason(
        "Resizing",
        (CLUSTER,),
        ("StorageReady",),
        "False",
        "Volumes grow, to spec.storage.size or by storage.autoGrow.",
    ),
    Reason(
        "GrowthLimitReached",
        (CLUSTER,),
        ("StorageReady",),
        "False",
        "A disk fills, and its volumes have reached spec.storage.autoGrow.limit.",
        "Raise the limit, shorten retention, or add groups.",
    ),
    Reason(
        "NotExpandable",
        (CLUSTER,),
        ("StorageReady",),
        "False",
        "The StorageClass does not let volumes grow; they keep their size.",
        "Set allowVolumeExpansion on the StorageClass; spec.storage.size never goes back.",
    ),
    Reason(
        "CapacityLeft",
        (CLUSTER,),
        ("CapacitySufficient",),
        "True",
        "No leader is short of processor time, and no disk fills.",
    ),
    Reason(
        "LeaderBusy",
        (CLUSTER,),
        ("CapacitySufficient",),
        "False",
        "The leader of a group uses most of a processor over a minute; the message has the figure.",
        "Raise spec.groups for new topics, or expand topics onto more groups; lower spec.resources.limits.cpu throttles, too.",
    ),
    Reason(
        "DiskFills",
        (CLUSTER,),
        ("CapacitySufficient",),
        "False",
        "A disk comes near config.diskMaxUsedSpaceRatio, at which sends are refused; the message has the figure.",
        "Raise spec.storage.size, set spec.storage.autoGrow, shorten retention, or add groups.",
    ),
    Reason(
        "UpToDate",
        (CLUSTER,),
        ("UpdateAvailable",),
        "False",
        "Pods run the operator's default image or one of their own.",
    ),
    Reason(
        "NewDefaultImage",
        (CLUSTER,),
        ("UpdateAvailable",),
        "True",
        "The operator brings another default image; running pods keep theirs.",
        "Set spec.image, or spec.update.onOperatorUpgrade to Adopt.",
    ),
    Reason(
        "NotBlocked", (CLUSTER,), ("ScaleDownBlocked",), "False", "No group is to be taken away."
    ),
    Reason(
        "PolicyRefuses",
        (CLUSTER,),
        ("ScaleDownBlocked",),
        "True",
        "spec.groups is below the present number and spec.scaleDown.policy is Refuse.",
        "Set spec.groups back, or the policy to Drain.",
    ),
    Reason(
        "Draining",
        (CLUSTER,),
        ("ScaleDownBlocked",),
        "True",
        "A group is being emptied; the message names what still holds it.",
        "Wait, consume, or delete what the message names.",
    ),
    Reason(
        "OrderedQueues",
        (CLUSTER,),
        ("ScaleDownBlocked",),
        "True",
        "Queues of an Ordered topic stand in the group; moving them would break the order.",
        "Delete that topic, or set spec.groups back.",
    ),
    Reason(
        "Balanced",
        (CONSUMER_GROUP,),
        ("Balanced",),
        "True",
        "Every queue has exactly one living owner, and shares differ by one at most.",
    ),
    Reason(
        "NoMembers",
        (CONSUMER_GROUP,),
        ("Balanced", "ConsistentSubscription"),
        "Unknown",
        "Nobody consumes.",
    ),
    Reason(
        "QueuesWithoutOwner",
        (CONSUMER_GROUP,),
        ("Balanced",),
        "False",
        "Queues have no owner; the message names them. Their members are notified by the brokers.",
        "If it stays: more members, or a client that does not lock.",
    ),
    Reason(
        "UnevenShares",
        (CONSUMER_GROUP,),
        ("Balanced",),
        "False",
        "Some members have more queues than others.",
        "None needed; it evens out when members come and go.",
    ),
    Reason(
        "QueuesContended",
        (CONSUMER_GROUP,),
        ("Balanced",),
        "False",
        "A member was refused a queue in the last half minute because another has it; "
        "the lock decides, and the message names both.",
        "None when it passes. If it stays, members assign the queues differently: give all the same "
        "strategy and the same topics.",
    ),
    Reason(
        "MembersDiffer",
        (CONSUMER_GROUP,),
        ("Balanced",),
        "False",
        "Raft groups know different members, who then assign the queues differently; the message names the groups.",
        "None when it passes: the members are told to look again. If it stays, a client does not reach every group.",
    ),
    Reason(
        "MembersIdle",
        (CONSUMER_GROUP,),
        ("Balanced",),
        "True",
        "There are more members than queues: every queue has one owner, and some members have none.",
        "Fewer members, or a topic with more queues.",
    ),
    Reason(
        "SameSubscription",
        (CONSUMER_GROUP,),
        ("ConsistentSubscription",),
        "True",
        "All members subscribe to the same.",
    ),
    Reason(
        "DifferentSubscriptions",
        (CONSUMER_GROUP,),
        ("ConsistentSubscription",),
        "False",
        "Members subscribe to different topics or tags and take messages from each other; the message names them.",
        "Give all members of a group the same subscription.",
    ),
)

BY_NAME: Final = {reason.name: reason for reason in REASONS}
