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
        "An edit would delete messages, or all copies but one; the message says which act and how to confirm it. The Cluster "
        "stays as it was before the edit, whole; its Topics, ConsumerGroups and Users are served. As reason of Ready: the "
        "StatefulSets have lost the note of the spec that was carried out, and nothing is until the edit is confirmed.",
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
        "GatewayApiMissing",
        (CLUSTER,),
        ("ListenersReady",),
        "False",
        "A listener of type TLSRoute needs Gateway API's definition of TLSRoute, which is not there. Nothing else of the Cluster "
        "waits for it.",
        "Install the definitions of Gateway API and a gateway that serves TLSRoute, or choose another type; either is noticed "
        "within a minute.",
    ),
    Reason(
        "RouteNotAccepted",
        (CLUSTER,),
        ("ListenersReady",),
        "False",
        "The gateway has not accepted a TLSRoute of a listener; the message has its words. Addresses that were published before "
        "stay published.",
        "Do what the message says: spec.listeners[].gateway must name a Gateway with a listener of protocol TLS and mode "
        "Passthrough whose allowedRoutes admit the namespace of the Cluster and whose hostname fits advertisedHost.",
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
        "Volumes grow, to spec.storage.size or by storage.autoGrow. Where that does not end by itself the message has Kubernetes' "
        "own words: some drivers grow no volume that is in use, and wait for its pod to start again.",
    ),
    Reason(
        "ClaimDeleted",
        (CLUSTER, PIPELINE),
        ("Ready", "StorageReady"),
        "False",
        "Somebody has deleted the volume claim of a replica, or of a Pipeline. Its pod keeps the volume until it ends, and what "
        "follows begins empty. Meanwhile the operator restarts neither a Pipeline's driver nor a replica without which no "
        "majority of its group has all messages.",
        "With other replicas: delete the pod while they are healthy, and they fill the new volume. With one: raise "
        "spec.replicasPerGroup to 3, wait for QuorumHealthy, then delete the pod. Of a Pipeline: save the checkpoint if it is "
        "needed, then delete the driver's pod.",
    ),
    Reason(
        "GrowthLimitReached",
        (CLUSTER,),
        ("StorageReady",),
        "False",
        "A disk fills, and its volumes have reached spec.storage.autoGrow.limit.",
        "Raise the limit, add groups, or shorten retention, which must be confirmed.",
    ),
    Reason(
        "NotExpandable",
        (CLUSTER, PIPELINE),
        ("StorageReady",),
        "False",
        "The StorageClass does not let volumes grow; they keep their size.",
        "Set allowVolumeExpansion on the StorageClass; spec.storage.size never goes back. Until then remove "
        "spec.storage.autoGrow of a Cluster, or set spec.retention.size: without it messages are kept up to three fifths of the limit.",
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
        "No leader is short of CPU time, and no disk fills.",
    ),
    Reason(
        "LeaderBusy",
        (CLUSTER,),
        ("CapacitySufficient",),
        "False",
        "The leader of a group uses most of a CPU over a minute; the message has the figure.",
        "Raise spec.groups for new topics, or expand topics onto more groups. A CPU limit slows a leader down, too: raise or "
        "remove spec.resources.limits.cpu.",
    ),
    Reason(
        "DiskFills",
        (CLUSTER,),
        ("CapacitySufficient",),
        "False",
        "A disk comes near config.diskMaxUsedSpaceRatio, at which sends are refused, or has reached it although storage.autoGrow is set.",
        "See StorageReady where storage.autoGrow is set. Raise spec.storage.size, set spec.storage.autoGrow, add groups, or shorten retention, which must be confirmed.",
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
        "A group is emptied, or is to be; the message names what still holds it.",
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
)
