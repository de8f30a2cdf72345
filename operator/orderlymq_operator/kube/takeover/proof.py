"""
Proof that a consumer can no longer act, from reads of its pod, its node and the node's own reports.

Pure. Rules: a queue is taken from its holder before the lease ends only on proof. A lost connection or silence is no
proof. A pod that no longer exists is no proof either: a pod deleted by force disappears before its processes end, and
they keep running if its kubelet is down. Proof comes from the kubelet, which ends processes, or from a person who
declares the machine off. While a client is alive, it is bound to the pod that has its address and to the start times of
that pod's containers. Clients behind a proxy connect from the proxy's address and outlive the proxy. A client therefore
counts as running in a pod only if its client id begins with the pod's address, too.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Final

from orderlymq_operator.brokers.answers import LockHolder
from orderlymq_operator.kube.observe.pods import PodFacts
from orderlymq_operator.kube.resources import Json
from orderlymq_protocol.hosts import ip_of

OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"
KILLING: Final = "Killing"
_KUBELET: Final = "kubelet"
_CONTAINER: Final = re.compile(r"\{(.*)\}")


@dataclass(frozen=True, slots=True)
class Binding:
    """A client and the pod that it runs in.

    Attributes:
        starts: when each container was started; None for a container that did not run.
        addresses: the addresses that requested its locks. Another program with the same id has other addresses.
    """

    client_id: str
    uid: str
    starts: tuple[str | None, ...]
    addresses: frozenset[str] = frozenset()

    def is_in(self, pod: PodFacts) -> bool:
        """Return whether all containers that ran with the client still run in *pod*; later containers do not count."""
        ran = set(self.starts) - {None}
        return self.uid == pod.uid and bool(ran) and ran <= set(pod.starts)


@dataclass(frozen=True, slots=True)
class Proof:
    """Why a client is certainly gone once its connection is closed, too.

    A connection that is still open belongs to a client that was bound wrongly, or to a client that is ending.

    Attributes:
        whole: all processes of the pod have ended or are being killed, not only those of previous containers.
        overrules: the proof holds even if the connection is open, because a machine that is off closes no connections.
    """

    text: str
    whole: bool = True
    overrules: bool = False


def bind(client_id: str, holder: LockHolder, pods: dict[str, PodFacts]) -> Binding | None:
    """Return the pod that a client runs in; None if its address belongs to no pod or to a proxy.

    The address is that of its connection as the broker sees it. *pods* are the pods with an address of their own.
    """
    pod = pods.get(host_of(holder.address))
    if pod is None or not runs_in(pod, client_id, holder.address):
        return None
    return Binding(client_id, pod.uid, pod.starts, holder.addresses)


def runs_in(pod: PodFacts, client_id: str, address: str) -> bool:
    """Return whether a client has an address of *pod* in its id (`ip@instance`) and connects from an address of *pod*.

    With a dual stack, these may be two addresses of the pod.
    """
    return set(place_of(client_id, address)) <= set(pod.ips)


def place_of(client_id: str, address: str) -> tuple[str, str]:
    """Return the address at the start of a client id, and the host that the client connects from."""
    return _plain(client_id.partition("@")[0]), host_of(address)


def host_of(address: str) -> str:
    """Return the host of `host:port`; an IPv4 address that is mapped to IPv6 becomes plain IPv4."""
    return _plain(address.rpartition(":")[0])


@lru_cache(maxsize=1 << 15)
def _plain(host: str) -> str:
    """Return an address in the form that pods report, without the brackets and the interface that Java writes."""
    host = host.strip("[]").partition("%")[0]
    return str(ip_of(host) or host)


def proof_of(
    was: PodFacts,
    pod: PodFacts | None,
    node: Json | None,
    last: PodFacts | None = None,
    kills: Sequence[Json] = (),
) -> Proof | None:
    """Return the proof that every client in a pod is gone; None if one may be alive.

    Args:
        was: the pod when its clients were seen.
        pod: the pod of that name now, read from the API server; None if it does not exist.
        node: the node that it ran on, read from the API server; None if it does not exist.
        last: the pod as a watch showed it last. A watch may be late, but a container that has ended stays ended.
        kills: events with the reason Killing about the pod.
    """
    name = f"pod {was.namespace}/{was.name}"
    if is_out_of_service(node):
        return Proof(f"node {was.node} of {name} is out of service", overrules=True)
    if pod is not None and pod.uid == was.uid:
        # One container may be a helper. The client has certainly ended only if each container has ended since.
        if _has_ended(was, pod):
            text = f"every container of {name} has restarted or ended"
            return Proof(text, whole=pod.is_over)
        return None
    what = f"{name} no longer exists" if pod is None else f"{name} was replaced by another pod"
    if last is not None and _has_ended(was, last):
        return Proof(f"{what}, and its kubelet had ended it")
    if was.node and node is None:
        return Proof(f"{what}, and neither does node {was.node}")
    if _are_killed(was, kills):
        return Proof(f"{what}, and its kubelet kills its containers")
    return None


def is_out_of_service(node: Json | None) -> bool:
    """Return whether a person has declared a machine off by the taint `out-of-service`."""
    taints = ((node or {}).get("spec") or {}).get("taints") or []
    return any(taint.get("key") == OUT_OF_SERVICE for taint in taints)


def _has_ended(was: PodFacts, now: PodFacts) -> bool:
    """Return whether the kubelet reports that all containers of *was* that ran then have ended."""
    known = set(was.starts) - {None}
    return bool(known) and now.uid == was.uid and not known & set(now.starts)


def _are_killed(was: PodFacts, kills: Sequence[Json]) -> bool:
    """Return whether the kubelet has begun to kill every container that ran then.

    Both times are from the node's clock, in whole seconds. An event from the second of the start may be about the
    previous container, so it proves nothing.
    """
    running = {
        name: datetime.fromisoformat(start)
        for name, start in zip(was.containers, was.starts, strict=True)
        if start is not None
    }
    killed: dict[str, str] = {}
    for event in kills:
        place = event.get("involvedObject") or {}
        found = _CONTAINER.search(place.get("fieldPath") or "")
        at = event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp")
        source = (event.get("source") or {}).get("component") or event.get("reportingComponent")
        ours = place.get("uid") == was.uid and source == _KUBELET and event.get("reason") == KILLING
        if found and at and ours:
            name = found.group(1)
            killed[name] = max(killed.get(name, ""), at)
    return bool(running) and all(
        name in killed and datetime.fromisoformat(killed[name]) > start
        for name, start in running.items()
    )
