"""Names, labels, ports and annotations of the operator's objects; brokers, chart and tests rely on them."""

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
# The name of the additional listener, on its Services.
LABEL_LISTENER: Final = f"{GROUP}/listener"
LABEL_ROLE: Final = f"{GROUP}/role"
LEADER: Final = "leader"
# The raft term in which a pod took the label of the leader. If two pods have the label, the one with the higher term
# leads.
ANNOTATION_TERM: Final = f"{GROUP}/term"
ANNOTATION_REVISION: Final = f"{GROUP}/revision"
# The fingerprint of the desired object that was last applied.
ANNOTATION_APPLIED: Final = f"{GROUP}/applied"
# The number of replicas that formed the raft group; replicas that are added later join it without a vote.
ANNOTATION_FIRST: Final = f"{GROUP}/first-members"
# The number of replicas that the planner wants; the operator corrects a StatefulSet that a person has scaled.
ANNOTATION_REPLICAS: Final = f"{GROUP}/replicas"
# The broker group's address. Stored message ids contain it, so it must survive its Service.
ANNOTATION_ADDRESS: Final = f"{GROUP}/address"
# The image of the pods. The template may contain an image that a person wrote; the operator corrects it.
ANNOTATION_IMAGE: Final = f"{GROUP}/image"
# The record of a broker group's certificates and TLS mode.
ANNOTATION_CERTIFICATES: Final = f"{GROUP}/certificates"
# The Secret that an authority was copied from.
ANNOTATION_ISSUER: Final = f"{GROUP}/issuer"
# The form of the settings file that a pod reads; the pod mounts the files that these settings name.
ANNOTATION_SETTINGS: Final = f"{GROUP}/settings"
# The scheme of a pod's HTTP pages.
ANNOTATION_SCHEME: Final = f"{GROUP}/scheme"
# The TLS mode that a pod was made with.
ANNOTATION_TLS_MODE: Final = f"{GROUP}/tls-mode"
# The broker groups that a canary's pod sends to.
ANNOTATION_GROUPS: Final = f"{GROUP}/broker-groups"
# The addresses of additional listeners that a name server's pod has received.
ANNOTATION_ADDRESSES: Final = f"{GROUP}/addresses"
# The broker group accepts no more messages, because it will be removed.
ANNOTATION_CLOSED: Final = f"{GROUP}/closed"
# The accepted spec of the Cluster. An edit that is not confirmed, or that comes during a pause, waits.
ANNOTATION_ACCEPTED: Final = f"{GROUP}/accepted"
ANNOTATION_PAUSE: Final = f"{GROUP}/pause"
FINALIZER: Final = f"{GROUP}/broker"

# Kubernetes' own label: the revision of the StatefulSet from which a pod was made.
LABEL_TEMPLATE: Final = "controller-revision-hash"
# Objects of a Pipeline, in place of LABEL_CLUSTER.
LABEL_PIPELINE: Final = f"{GROUP}/pipeline"
# The kind of workload that made a driver's pod, and the work that the pod was made for.
LABEL_FORM: Final = f"{GROUP}/form"
ANNOTATION_WORK: Final = f"{GROUP}/work"

# The name and the UID of the Backup, on its Jobs and pods; the name of the Cluster, on the Job that finds a new
# Cluster's backup.
LABEL_BACKUP: Final = f"{GROUP}/backup"
LABEL_BACKUP_UID: Final = f"{GROUP}/backup-uid"
LABEL_RESTORE: Final = f"{GROUP}/restore"
# The name of the ScheduledBackup, on the Backups that it made.
LABEL_SCHEDULE: Final = f"{GROUP}/scheduled-by"
# The Backup stays until its stored data is deleted.
BACKUP_FINALIZER: Final = f"{GROUP}/stored-backup"
# The backup from which every replica of the Cluster was restored; after that, no replica is restored again.
ANNOTATION_RESTORED: Final = f"{GROUP}/restored"

BROKER: Final = "broker"
DRIVER: Final = "pipeline"
EXECUTOR: Final = "executor"
NAME_SERVER: Final = "nameserver"
# The containers of brokers and name servers. Other containers in a pod say nothing about these.
CONTAINERS: Final = ("broker", "name-server")

# The maximal number of replicas of a raft group.
_NODE_MAX: Final = max(get_args(ClusterSpec.model_fields["replicas_per_group"].annotation))
_ORDINAL: Final = re.compile(r"0|[1-9][0-9]{0,8}")


def name_server_set(cluster: Cluster) -> str:
    """Return the name of the StatefulSet and Service of the name servers."""
    return f"{cluster.metadata.name}-nameserver"


def replica_service(group: str) -> str:
    """Return the name of the headless Service that gives DNS names to the replicas of a raft group."""
    return f"{group}-{RESERVED}"


def listener_service(target: str, listener: str) -> str:
    """Return the name of a listener's Service; *target* is a broker group or the name servers' StatefulSet."""
    return f"{target}-{listener}"


def broker_account(cluster: Cluster) -> str:
    """Return the name of the brokers' ServiceAccount, Role and RoleBinding."""
    return f"{cluster.metadata.name}-broker"


def operator_secret(cluster: Cluster) -> str:
    """Return the name of the Secret with which the operator signs its requests."""
    return f"{cluster.metadata.name}-operator"


def user_secret(user: str) -> str:
    """Return the name of the Secret that the operator makes for a User that names none."""
    return f"{user}-user"


def identity_secret(cluster: Cluster) -> str:
    """Return the name of the Secret by which the processes of a Cluster identify each other."""
    return f"{cluster.metadata.name}-identity"


def authority_secret(cluster: Cluster, number: int) -> str:
    """Return the name of the Secret with an authority of the Cluster."""
    return f"{cluster.metadata.name}-{number}-ca"


def certificates_secret(group: str, number: int) -> str:
    """Return the name of the Secret with one set of certificates of a broker group."""
    return f"{group}-{number}-internal-tls"


def pod_name(group: str, node: int) -> str:
    """Return the name of a replica's pod; nodes count from 1, pods from 0."""
    return f"{group}-{node - 1}"


def node_of(pod: str) -> int:
    """Return the raft node that runs in a broker's pod."""
    return int(pod.rpartition("-")[2]) + 1


def ordinal_of(pod: str, owner: str) -> int | None:
    """Return the number that the StatefulSet *owner* gave a pod; None if the StatefulSet never gives such a name."""
    before, _, number = pod.rpartition("-")
    return int(number) if before == owner and _ORDINAL.fullmatch(number) else None


def node_of_claim(claim: str, group: str) -> int | None:
    """Return the raft node of *group* that a volume claim belongs to; None if it belongs to none."""
    index = ordinal_of(claim, f"data-{group}")
    return index + 1 if index is not None and index < _NODE_MAX else None


def claim_name(group: str, node: int) -> str:
    """Return the name of a replica's volume claim."""
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
    """Return the labels that select pods; they never change."""
    chosen = labels(cluster, component, group)
    return {key: value for key, value in chosen.items() if "managed-by" not in key}
