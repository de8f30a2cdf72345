"""
Proof that a consumer can no longer act, from live reads of its pod and node.

Pure. Rule: a queue leaves a running lease only on proof; a watch event, a lost connection or silence is none. What a
client is bound to was looked up while it was alive: the pod that had its address, and when the containers of that
pod had been started.
"""

from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from orderlymq_operator.kube.podfacts import PodFacts
from orderlymq_operator.kube.resources import Json

OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"
# A pod that is deleted by force disappears at once; the kubelet gives its processes two seconds to end.
ABSENT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Binding:
    """A client and the pod that it runs in.

    Attributes:
        starts: when each container had been started, as far as it ran.
    """

    client_id: str
    namespace: str
    pod: str
    uid: str
    node: str
    starts: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Proof:
    """Why a client is certainly gone, as soon as its connection is, too.

    Attributes:
        patience_s: after this time it is certain whatever becomes of its connection; None when a connection
            shows that the client is another one than was thought.
    """

    text: str
    patience_s: float | None


def bind(client_id: str, address: str, pods: dict[str, PodFacts]) -> Binding | None:
    """Return which pod a client runs in; None when its address is no pod's own.

    The address is that of its connection as the broker sees it; *pods* are those with an address of their own.
    """
    pod = pods.get(host_of(address))
    if pod is None:
        return None
    return Binding(client_id, pod.namespace, pod.name, pod.uid, pod.node, pod.starts)


def host_of(address: str) -> str:
    """Return the host of `host:port`, without the form of an IPv4 address on an IPv6 socket."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        found = ip_address(host)
    except ValueError:
        return host
    mapped = getattr(found, "ipv4_mapped", None)
    return str(mapped or found)


def proof_of(binding: Binding, pod: PodFacts | None, node: Json | None) -> Proof | None:
    """Return the proof that a client is gone; None when it may live.

    *pod* is the pod of that name, read live, *node* the one that it ran on; None where there is none.
    """
    name = f"pod {binding.namespace}/{binding.pod}"
    taints = {taint.get("key") for taint in ((node or {}).get("spec") or {}).get("taints") or []}
    if OUT_OF_SERVICE in taints:
        return Proof(f"node {binding.node} of {name} is out of service", patience_s=0)
    if pod is None:
        return Proof(f"{name} does not exist any more", ABSENT_S)
    if pod.uid != binding.uid:
        return Proof(f"{name} is another one now", ABSENT_S)
    if pod.phase in {"Succeeded", "Failed"}:
        return Proof(f"{name} has ended", ABSENT_S)
    # One container may be a helper: only when each has ended since is the client certainly among them.
    known = set(binding.starts) - {None}
    if known and not known & set(pod.starts):
        return Proof(f"every container of {name} was started anew or has ended", None)
    return None
