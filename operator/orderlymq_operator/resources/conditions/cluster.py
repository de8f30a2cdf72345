"""The reasons of the other conditions of Clusters; those of OrderVerified are in `canary`."""

from typing import Final

from orderlymq_operator.resources.conditions.reason import CLUSTER, PIPELINE, Reason

REASONS: Final = (
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
        ("Ready", "Confirmed"),
        "False",
        "An edit would delete messages, or all copies but one; the message says which, and how to confirm it. No part of the "
        "edit is applied meanwhile; Topics, ConsumerGroups and Users are still reconciled. As reason of Ready: the "
        "StatefulSets no longer record which spec was applied, so nothing is applied until the edit is confirmed.",
        "Revert the edit, or annotate the Cluster as the message says; an annotation confirms one edit.",
    ),
    Reason("NotPaused", (CLUSTER,), ("Paused",), "False", "Changes are being applied."),
    Reason("AllGroupsLead", (CLUSTER,), ("Available",), "True", "Every raft group has a leader."),
    Reason(
        "GroupWithoutLeader",
        (CLUSTER,),
        ("Available",),
        "False",
        "A raft group has no leader: nothing can be sent to or consumed from its queues.",
        "Make sure that a majority of its pods runs.",
    ),
    Reason(
        "AllReplicasHealthy",
        (CLUSTER,),
        ("QuorumHealthy",),
        "True",
        "Every replica answers, is a voter and has nearly the whole log.",
    ),
    Reason(
        "ReplicaMissing",
        (CLUSTER,),
        ("QuorumHealthy",),
        "False",
        "A replica does not answer, or lags; the loss of another replica may stop its group.",
        "Look at its pod. If its volume is lost, delete the pod and its claim; the other replicas fill the new volume.",
    ),
    Reason(
        "SurvivesLoss",
        (CLUSTER,),
        ("FaultTolerant",),
        "True",
        "Each group keeps a majority if any single failure domain is lost; the message says how many more replicas it can "
        "then lose.",
    ),
    Reason(
        "MajorityTogether",
        (CLUSTER,),
        ("FaultTolerant",),
        "False",
        "The loss of one node or zone would stop a group; the message names it.",
        "Add replicas, nodes or zones; spec.placement.antiAffinity Required keeps new pods apart. To move a pod whose volume "
        "is in the wrong zone, delete both, one replica at a time.",
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
        "NoListeners",
        (CLUSTER,),
        ("ListenersReady",),
        "True",
        "spec.listeners is empty: only clients in the Cluster's own network reach it.",
    ),
    Reason(
        "AddressesKnown",
        (CLUSTER,),
        ("ListenersReady",),
        "True",
        "Every listener has an address for the name servers and for each group; status.listeners shows the addresses for "
        "clients.",
    ),
    Reason(
        "AddressMissing",
        (CLUSTER,),
        ("ListenersReady",),
        "False",
        "A Service of a listener has no address yet; the message names it. Name servers refuse routes through that listener "
        "with OutsideAddressMissing.",
        "Make sure that this Kubernetes creates load balancers (kubectl describe service) and that a node is ready, or set "
        "advertisedHost.",
    ),
    Reason(
        "GatewayApiMissing",
        (CLUSTER,),
        ("ListenersReady",),
        "False",
        "A listener of type TLSRoute needs Gateway API's definition of TLSRoute, which is not installed. Nothing else of the "
        "Cluster waits for it.",
        "Install the definitions of Gateway API and a gateway that serves TLSRoute, or choose another type; the operator "
        "notices either within a minute.",
    ),
    Reason(
        "RouteNotAccepted",
        (CLUSTER,),
        ("ListenersReady",),
        "False",
        "The gateway has not accepted a TLSRoute of a listener; the message quotes it. Addresses that were published before "
        "stay published.",
        "Do what the message says: spec.listeners[].gateway must name a Gateway with a listener of protocol TLS and mode "
        "Passthrough whose allowedRoutes admit the namespace of the Cluster and whose hostname fits advertisedHost.",
    ),
    Reason(
        "CertificatesRenewed",
        (CLUSTER,),
        ("CertificatesCurrent",),
        "True",
        "Every replica runs with certificates that do not expire soon.",
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
        "A replica runs with a certificate that has less than a sixth of its lifetime left; the message says when it expires. "
        "Replicas with expired certificates accept no connections.",
        "End the pause (spec.update.mode, annotation orderlymq.io/pause), so that the operator replaces the pods, or delete "
        "them one at a time.",
    ),
    Reason("Settled", (CLUSTER,), ("Progressing",), "False", "No change is being applied."),
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
        "Volumes grow, to spec.storage.size or by storage.autoGrow. If that does not end by itself, the message quotes "
        "Kubernetes: some drivers cannot grow a volume in use and wait until its pod restarts.",
    ),
    Reason(
        "ClaimDeleted",
        (CLUSTER, PIPELINE),
        ("Ready", "StorageReady"),
        "False",
        "The volume claim of a replica or a Pipeline was deleted. Its pod keeps the volume until the pod ends; the next pod "
        "begins with an empty volume. Meanwhile the operator does not restart a Pipeline's driver, nor a replica if the "
        "others are no majority with all messages of the group.",
        "Replica of several: delete the pod while the others are healthy; they fill the new volume. Only replica: raise "
        "spec.replicasPerGroup to 3, wait for QuorumHealthy, then delete the pod. Pipeline: save the checkpoint if you need "
        "it, then delete the driver's pod.",
    ),
    Reason(
        "GrowthLimitReached",
        (CLUSTER,),
        ("StorageReady",),
        "False",
        "A disk is filling up, and the volumes of its group have reached spec.storage.autoGrow.limit.",
        "Raise the limit, add groups, or shorten the retention (this must be confirmed).",
    ),
    Reason(
        "NotExpandable",
        (CLUSTER, PIPELINE),
        ("StorageReady",),
        "False",
        "The StorageClass does not let volumes grow; they keep their size.",
        "Set allowVolumeExpansion on the StorageClass; spec.storage.size cannot be reduced again. Until then, remove "
        "spec.storage.autoGrow of the Cluster or set spec.retention.size: without it, messages are kept up to three fifths of "
        "the limit.",
    ),
    Reason(
        "GrowthRefused",
        (CLUSTER, PIPELINE),
        ("StorageReady",),
        "False",
        "The API server refuses to let a volume grow; it keeps its size.",
        "Do what the message says: raise the quota, or correct the admission policy.",
    ),
    Reason(
        "CapacityLeft",
        (CLUSTER,),
        ("CapacitySufficient",),
        "True",
        "No leader is short of CPU time, and no disk is filling up.",
    ),
    Reason(
        "LeaderBusy",
        (CLUSTER,),
        ("CapacitySufficient",),
        "False",
        "The leader of a group has used most of one CPU for a minute; the message has the figure.",
        "Raise spec.groups for new topics, or expand topics onto more groups. A CPU limit slows a leader down, too: raise or "
        "remove spec.resources.limits.cpu.",
    ),
    Reason(
        "DiskFills",
        (CLUSTER,),
        ("CapacitySufficient",),
        "False",
        "The usage of a disk is close to config.diskMaxUsedSpaceRatio, at which sends are refused, or has reached it although "
        "storage.autoGrow is set.",
        "If storage.autoGrow is set, look at StorageReady. Raise spec.storage.size, set spec.storage.autoGrow, add groups, or "
        "shorten the retention (this must be confirmed).",
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
        "The operator has a new default image; running pods keep theirs.",
        "Set spec.image, or spec.update.onOperatorUpgrade to Adopt.",
    ),
    Reason("NotBlocked", (CLUSTER,), ("ScaleDownBlocked",), "False", "No group is being removed."),
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
        "A group is being emptied, or waits for it; the message names what it still holds.",
        "Wait, consume, or delete what the message names.",
    ),
    Reason(
        "OrderedQueues",
        (CLUSTER,),
        ("ScaleDownBlocked",),
        "True",
        "The group has queues of an Ordered topic; moving them would break the order.",
        "Delete that topic, or set spec.groups back.",
    ),
)
