"""
Observed state of a pod and of a volume claim, reduced to the fields that the operator uses.

Pure. An API object of some kilobytes becomes a record of a few fields, so that the operator can keep thousands of
client pods in memory.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.ownership import owners
from orderlymq_operator.kube.objects.pods import Access, access_to, tls_mode_of
from orderlymq_operator.kube.resources import Json

_IMAGE_REASONS: Final = {
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
    "RegistryUnavailable",
}
_BEGINNING: Final = ("initContainerStatuses", "containerStatuses")
_HELPERS: Final = ("initContainerStatuses", "ephemeralContainerStatuses")
IMAGE_UNAVAILABLE: Final = "ImageUnavailable"
# Conditions of a claim: some drivers cannot expand a volume in use and wait for its pod to restart, and some growths
# fail.
_GROWTH_WAITS: Final = {"FileSystemResizePending", "ControllerResizeError", "NodeResizeError"}
_STARTING: Final = {"ContainerCreating", "PodInitializing"}
# Phases of a pod in which the kubelet starts no container any more.
ENDED: Final = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a pod does not run: a reason of `conditions`, and a sentence."""

    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class PodFacts:
    """The state of a pod when it was last read.

    Attributes:
        containers: names of all containers that the node reports, including init and ephemeral containers.
        starts: when each of them was started, as the node reports; None for a container that does not run.
        ips: all its addresses, one of each family; `ip` is the first.
        access: how to connect to the broker or name server in the pod; None if the pod does not tell.
        tls_mode: the TLS mode with which the broker or name server was made.
        image: the image of a broker or name server; empty for other pods.
        ready_since: when it became ready, in seconds since the epoch; None while it is not ready.
    """

    namespace: str
    name: str
    uid: str
    ip: str
    node: str
    phase: str
    deleting: bool
    host_network: bool
    restarts: int
    containers: tuple[str, ...]
    starts: tuple[str | None, ...]
    ready_since: float | None
    ips: tuple[str, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    trouble: Trouble | None = None
    access: Access | None = None
    tls_mode: str = "Disabled"
    image: str = ""

    @property
    def running(self) -> bool:
        """True if it has an address and its phase is Running."""
        return bool(self.ip) and self.phase == "Running"

    @property
    def is_over(self) -> bool:
        """True if no container runs and the kubelet will start none."""
        return self.phase in ENDED and not any(self.starts)

    @property
    def serves(self) -> bool:
        """True if the container that the operator defined runs; sidecars do not count."""
        return any(
            start is not None
            for name, start in zip(self.containers, self.starts, strict=True)
            if name in names.CONTAINERS
        )

    @property
    def leads(self) -> bool:
        """True if it has the label of the leader."""
        return self.labels.get(names.LABEL_ROLE) == names.LEADER

    @property
    def term(self) -> int:
        """The raft term in which it took the leader's label; 0 if it never did."""
        text = self.annotations.get(names.ANNOTATION_TERM, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0


def pod_facts(pod: Json) -> PodFacts:
    """Return the facts about a pod."""
    meta, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    containers = status.get("containerStatuses") or []
    # A consumer may run in an init container or in an ephemeral container.
    every = [*containers, *(each for kind in _HELPERS for each in status.get(kind) or [])]
    own = {key: value for key, value in (meta.get("labels") or {}).items() if key in _LABELS}
    notes = {key: value for key, value in (meta.get("annotations") or {}).items() if key in _NOTES}
    return PodFacts(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        ip=status.get("podIP", ""),
        node=spec.get("nodeName", ""),
        phase=status.get("phase", ""),
        deleting="deletionTimestamp" in meta,
        host_network=bool(spec.get("hostNetwork")),
        restarts=sum(container.get("restartCount", 0) for container in containers),
        containers=tuple(container["name"] for container in every),
        starts=tuple(
            ((container.get("state") or {}).get("running") or {}).get("startedAt")
            for container in every
        ),
        ready_since=_ready_since(status),
        ips=_ips(status),
        labels=own,
        annotations=notes,
        trouble=_trouble(meta["name"], status),
        access=access_to(pod),
        tls_mode=tls_mode_of(pod),
        image=next(
            (
                each.get("image", "")
                for each in spec.get("containers") or []
                if each["name"] in names.CONTAINERS
            ),
            "",
        ),
    )


def container_status(pod: Json, called: Collection[str], kind: str = "containerStatuses") -> Json:
    """Return the status of the first container with one of these names; empty before the node reports it.

    The position does not identify a container, because webhooks add containers to pods, some of them at the start.
    """
    statuses: list[Json] = (pod.get("status") or {}).get(kind) or []
    return next((each for each in statuses if each.get("name") in called), {})


_LABELS: Final = {
    names.LABEL_CLUSTER,
    names.LABEL_GROUP,
    names.LABEL_ROLE,
    names.LABEL_TEMPLATE,
    "app.kubernetes.io/component",
}
_NOTES: Final = {
    names.ANNOTATION_ADDRESSES,
    names.ANNOTATION_REVISION,
    names.ANNOTATION_TERM,
    names.ANNOTATION_CERTIFICATES,
    names.ANNOTATION_SETTINGS,
    names.ANNOTATION_GROUPS,
}


def _ips(status: Json) -> tuple[str, ...]:
    every = [status.get("podIP", ""), *(each["ip"] for each in status.get("podIPs") or [])]
    return tuple(dict.fromkeys(filter(None, every)))


def _ready_since(status: Json) -> float | None:
    for condition in status.get("conditions") or []:
        if condition["type"] == "Ready" and condition["status"] == "True":
            since = condition.get("lastTransitionTime")
            return datetime.fromisoformat(since).timestamp() if since else 0.0
    return None


def _trouble(name: str, status: Json) -> Trouble | None:
    for condition in status.get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            text = condition.get("message", "")
            volume = any(
                word in text for word in ("PersistentVolumeClaim", "storageclass", "volume")
            )
            return Trouble(
                "VolumePending" if volume else "Unschedulable", f"pod {name}: {text or 'no node'}"
            )
    # While an init container waits, the other containers only report that they are starting.
    for container in (each for kind in _BEGINNING for each in status.get(kind) or []):
        waiting = (container.get("state") or {}).get("waiting")
        if waiting and waiting.get("reason") not in _STARTING:
            return _waiting_trouble(name, container, waiting)
    return None


def _waiting_trouble(name: str, container: Json, waiting: Json) -> Trouble:
    reason = waiting.get("reason", "")
    if reason in _IMAGE_REASONS:
        image = container.get("image", "")
        return Trouble(
            IMAGE_UNAVAILABLE, f"pod {name}: image {image}: {waiting.get('message') or reason}"
        )
    ended = (container.get("lastState") or {}).get("terminated") or {}
    last = f", its last exit code was {ended['exitCode']}" if "exitCode" in ended else ""
    return Trouble("PodFailing", f"pod {name}: {reason}{last}: {waiting.get('message', '')}")


@dataclass(frozen=True, slots=True)
class ClaimFacts:
    """A volume claim with its requested and its actual size.

    Attributes:
        goes_with: UIDs of the StatefulSets that own it; it is deleted when they are gone.
        waits_for: Kubernetes' message about a growth that cannot complete by itself; empty if there is none.
    """

    name: str
    uid: str
    phase: str
    requested: str
    capacity: str
    class_name: str
    deleting: bool
    goes_with: frozenset[str] = frozenset()
    waits_for: str = ""


def claim_facts(claim: Json) -> ClaimFacts:
    """Return the facts about a volume claim."""
    spec, status = claim["spec"], claim.get("status") or {}
    return ClaimFacts(
        name=claim["metadata"]["name"],
        uid=claim["metadata"]["uid"],
        phase=status.get("phase", ""),
        requested=((spec.get("resources") or {}).get("requests") or {}).get("storage", "0"),
        capacity=(status.get("capacity") or {}).get("storage", "0"),
        class_name=spec.get("storageClassName", ""),
        deleting="deletionTimestamp" in claim["metadata"],
        goes_with=frozenset(owners(claim, "StatefulSet")),
        waits_for=next(
            (
                each.get("message", "")
                for each in status.get("conditions") or []
                if each["type"] in _GROWTH_WAITS and each["status"] == "True"
            ),
            "",
        ),
    )
