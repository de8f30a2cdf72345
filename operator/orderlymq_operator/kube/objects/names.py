"""Names, labels, ports and annotations of the objects that the operator makes; brokers, chart and tests rely on them."""

import re
from typing import Final, get_args

from orderlymq_operator.resources.cluster.cluster import ClusterSpec
from orderlymq_operator.resources.cluster.listeners import RESERVED
from orderlymq_operator.resources.kinds import Cluster
from orderlymq_operator.resources.meta import GROUP

NAME_SERVER_PORT: Final = 9876
BROKER_PORT: Final = 10911
OLD_CLIENT_PORT: Final = 10909  # RocketMQ clients up to 4.4 send to the broker's port - 2
RAFT_PORT: Final = 12910
HTTP_PORT: Final = 13910
TERMINATION_LOG: Final = "/dev/termination-log"  # Kubernetes' default

LABEL_CLUSTER: Final = f"{GROUP}/cluster"
LABEL_GROUP: Final = f"{GROUP}/group"
# The Services of a further listener have its name.
LABEL_LISTENER: Final = f"{GROUP}/listener"
LABEL_ROLE: Final = f"{GROUP}/role"
LEADER: Final = "leader"
# The raft term in which a pod took the label: of two pods that carry it the higher term is right.
ANNOTATION_TERM: Final = f"{GROUP}/term"
ANNOTATION_REVISION: Final = f"{GROUP}/revision"
# What was last applied to an object: a change of it is a change that is wanted.
ANNOTATION_APPLIED: Final = f"{GROUP}/applied"
# Replicas that began the group together; those added later join it without a vote.
ANNOTATION_FIRST: Final = f"{GROUP}/first-members"
# Replicas that the planner wants; a number that somebody writes into the StatefulSet is put right.
ANNOTATION_REPLICAS: Final = f"{GROUP}/replicas"
# The group's address is part of stored message ids: it must survive its Service.
ANNOTATION_ADDRESS: Final = f"{GROUP}/address"
# The image of the pods: that of the template may be a hand's, which is put right.
ANNOTATION_IMAGE: Final = f"{GROUP}/image"
# The certificates of a group's replicas, and how strictly they are asked for.
ANNOTATION_CERTIFICATES: Final = f"{GROUP}/certificates"
# The Secret that an authority was copied from.
ANNOTATION_ISSUER: Final = f"{GROUP}/issuer"
# Which settings file a pod reads: it has mounted what that one names.
ANNOTATION_SETTINGS: Final = f"{GROUP}/settings"
# How the HTTP pages of a pod are asked for.
ANNOTATION_SCHEME: Final = f"{GROUP}/scheme"
# The TLS mode that a pod was made with.
ANNOTATION_TLS_MODE: Final = f"{GROUP}/tls-mode"
# The broker groups that a canary's pod sends to.
ANNOTATION_GROUPS: Final = f"{GROUP}/broker-groups"
# Which addresses of further listeners a name server's pod has got.
ANNOTATION_ADDRESSES: Final = f"{GROUP}/addresses"
# The group takes no more messages, because it is to go.
ANNOTATION_CLOSED: Final = f"{GROUP}/closed"
# The spec of the Cluster that is carried out: an edit that is not confirmed, or comes in a pause, waits.
ANNOTATION_ACCEPTED: Final = f"{GROUP}/accepted"
ANNOTATION_PAUSE: Final = f"{GROUP}/pause"
FINALIZER: Final = f"{GROUP}/broker"

# Kubernetes' own: the form of its StatefulSet that a pod was made in.
LABEL_TEMPLATE: Final = "controller-revision-hash"
# Objects of a Pipeline, in place of LABEL_CLUSTER.
LABEL_PIPELINE: Final = f"{GROUP}/pipeline"
# What made a driver's pod, and the work that it was made for.
LABEL_FORM: Final = f"{GROUP}/form"
ANNOTATION_WORK: Final = f"{GROUP}/work"

# Jobs and pods of a Backup, and of its very UID; the Job that looks for a new Cluster's backup has the Cluster's name.
LABEL_BACKUP: Final = f"{GROUP}/backup"
LABEL_BACKUP_UID: Final = f"{GROUP}/backup-uid"
LABEL_RESTORE: Final = f"{GROUP}/restore"
# A Backup that a schedule has made.
LABEL_SCHEDULE: Final = f"{GROUP}/scheduled-by"
# What is stored of a Backup is deleted before it goes.
BACKUP_FINALIZER: Final = f"{GROUP}/stored-backup"
# The backup with which every replica of the Cluster began: none is restored any more.
ANNOTATION_RESTORED: Final = f"{GROUP}/restored"

BROKER: Final = "broker"
DRIVER: Final = "pipeline"
EXECUTOR: Final = "executor"
NAME_SERVER: Final = "nameserver"
# The containers of brokers and name servers; pods may have others, which say nothing about those.
CONTAINERS: Final = ("broker", "name-server")

# A group never had more replicas.
_NODE_MAX: Final = max(get_args(ClusterSpec.model_fields["replicas_per_group"].annotation))
_ORDINAL: Final = re.compile(r"0|[1-9][0-9]{0,8}")


def name_server_set(cluster: Cluster) -> str:
    """Return the name of the StatefulSet and Service of the name servers."""
    return f"{cluster.metadata.name}-nameserver"


def replica_service(group: str) -> str:
    """Return the name of the headless Service that names the replicas of a group."""
    return f"{group}-{RESERVED}"


def listener_service(target: str, listener: str) -> str:
    """Return the name of the Service of a further listener; *target* is a group or the name servers' own."""
    return f"{target}-{listener}"


def broker_account(cluster: Cluster) -> str:
    """Return the name of the brokers' ServiceAccount, Role and RoleBinding."""
    return f"{cluster.metadata.name}-broker"


def operator_secret(cluster: Cluster) -> str:
    """Return the name of the Secret with which the operator signs its requests."""
    return f"{cluster.metadata.name}-operator"


def user_secret(user: str) -> str:
    """Return the name of the Secret that is made for a User which names none."""
    return f"{user}-user"


def identity_secret(cluster: Cluster) -> str:
    """Return the name of the Secret that the processes of a cluster know each other by."""
    return f"{cluster.metadata.name}-identity"


def authority_secret(cluster: Cluster, number: int) -> str:
    """Return the name of the Secret with an authority of the cluster."""
    return f"{cluster.metadata.name}-{number}-ca"


def certificates_secret(group: str, number: int) -> str:
    """Return the name of the Secret with one set of certificates of a group."""
    return f"{group}-{number}-internal-tls"


def pod_name(group: str, node: int) -> str:
    """Return the pod of a replica; nodes count from 1, pods from 0."""
    return f"{group}-{node - 1}"


def node_of(pod: str) -> int:
    """Return the node that runs in a broker's pod."""
    return int(pod.rpartition("-")[2]) + 1


def ordinal_of(pod: str, owner: str) -> int | None:
    """Return the number that the StatefulSet *owner* gave a pod; None where it never gives such a name."""
    before, _, number = pod.rpartition("-")
    return int(number) if before == owner and _ORDINAL.fullmatch(number) else None


def node_of_claim(claim: str, group: str) -> int | None:
    """Return the replica of *group* whose volume a claim is; None for the claim of somebody else."""
    index = ordinal_of(claim, f"data-{group}")
    return index + 1 if index is not None and index < _NODE_MAX else None


def claim_name(group: str, node: int) -> str:
    """Return the volume claim of a replica."""
    return f"data-{pod_name(group, node)}"


def labels(cluster: Cluster, component: str, group: str | None = None) -> dict[str, str]:
    """Return the labels of everything that belongs to a component, or to one raft group."""
    found = {
        "app.kubernetes.io/name": "orderlymq",
        "app.kubernetes.io/instance": cluster.metadata.name,
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/managed-by": "orderlymq-operator",
        LABEL_CLUSTER: cluster.metadata.name,
    }
    if group is not None:
        found[LABEL_GROUP] = group.rpartition("-")[2]
    return found


def selector(cluster: Cluster, component: str, group: str | None = None) -> dict[str, str]:
    """Return the labels by which pods are chosen; they never change."""
    chosen = labels(cluster, component, group)
    return {key: value for key, value in chosen.items() if "managed-by" not in key}
