"""
Proof that a consumer can no longer act, from reads of its pod, its node and the node's own reports.

Pure. Rule: a queue leaves a running lease only on proof. A lost connection or silence is no proof, and neither is a pod
that no longer exists: a pod deleted by force is gone before its processes are, and they run on where its kubelet is down.
Proof comes from who ends processes: the kubelet, or a person who declares the machine off. Each client was bound while it
was alive to the pod that had its address and to the start times of its containers. A proxy has the address of its clients,
and they outlive it: who was in a pod must say so, too, with the pod's address at the beginning of its client id.
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
        starts: when each container had been started, as far as it ran.
        addresses: where its locks had been asked for from. Another program with its id has others.
    """

    client_id: str
    uid: str
    starts: tuple[str | None, ...]
    addresses: frozenset[str] = frozenset()

    def is_in(self, pod: PodFacts) -> bool:
        """Return whether all that ran with the client then runs in *pod*; what was started later changes nothing."""
        ran = set(self.starts) - {None}
        return self.uid == pod.uid and bool(ran) and ran <= set(pod.starts)


@dataclass(frozen=True, slots=True)
class Proof:
    """Why a client is certainly gone, as soon as its connection is, too.

    A connection that is still there belongs to a client that was bound wrongly, or to one that is ending.

    Attributes:
        whole: all processes of the pod have ended or are being killed, not only those of previous containers.
        overrules: it holds whatever becomes of the connection: from a machine that is off nobody closes it.
    """

    text: str
    whole: bool = True
    overrules: bool = False


def bind(client_id: str, holder: LockHolder, pods: dict[str, PodFacts]) -> Binding | None:
    """Return which pod a client runs in; None when its address is no pod's own, or is that of a proxy.

    The address is that of its connection as the broker sees it; *pods* are those with an address of their own.
    """
    pod = pods.get(host_of(holder.address))
    if pod is None or not runs_in(pod, client_id, holder.address):
        return None
    return Binding(client_id, pod.uid, pod.starts, holder.addresses)


def runs_in(pod: PodFacts, client_id: str, address: str) -> bool:
    """Return whether a client names an address of a pod in its id (`ip@instance`) and comes from there.

    In a dual stack these may be two addresses of the pod.
    """
    return set(place_of(client_id, address)) <= set(pod.ips)


def place_of(client_id: str, address: str) -> tuple[str, str]:
    """Return the address that a client id begins with, and the host that the client comes from."""
    return _plain(client_id.partition("@")[0]), host_of(address)


def host_of(address: str) -> str:
    """Return the host of `host:port`, without the form of an IPv4 address on an IPv6 socket."""
    return _plain(address.rpartition(":")[0])


@lru_cache(maxsize=1 << 15)
def _plain(host: str) -> str:
    """Return an address as pods have it: Java writes brackets and the interface."""
    host = host.strip("[]").partition("%")[0]
    return str(ip_of(host) or host)


def proof_of(
    was: PodFacts,
    pod: PodFacts | None,
    node: Json | None,
    last: PodFacts | None = None,
    kills: Sequence[Json] = (),
) -> Proof | None:
    """Return the proof that every client in a pod is gone; None when one may live.

    Args:
        was: the pod when its clients were seen.
        pod: the pod of that name now, read live; None where there is none.
        node: the node that it ran on, read live; None where there is none.
        last: how a watch showed it last. A watch may be late, but an end is never taken back.
        kills: events of reason Killing about it.
    """
    name = f"pod {was.namespace}/{was.name}"
    if is_out_of_service(node):
        return Proof(f"node {was.node} of {name} is out of service", overrules=True)
    if pod is not None and pod.uid == was.uid:
        # One container may be a helper: only when each has ended since is the client certainly among them.
        if _has_ended(was, pod):
            text = f"every container of {name} was started again or has ended"
            return Proof(text, whole=pod.is_over)
        return None
    what = f"{name} does not exist any more" if pod is None else f"{name} is another one now"
    if last is not None and _has_ended(was, last):
        return Proof(f"{what}, and its kubelet had ended it")
    if was.node and node is None:
        return Proof(f"{what}, and neither does node {was.node}")
    if _are_killed(was, kills):
        return Proof(f"{what}, and its kubelet kills its containers")
    return None


def is_out_of_service(node: Json | None) -> bool:
    """Return whether somebody gave their word that a machine is off."""
    taints = ((node or {}).get("spec") or {}).get("taints") or []
    return any(taint.get("key") == OUT_OF_SERVICE for taint in taints)


def _has_ended(was: PodFacts, now: PodFacts) -> bool:
    """Return whether the kubelet says that none of the containers runs any more that ran then."""
    known = set(was.starts) - {None}
    return bool(known) and now.uid == was.uid and not known & set(now.starts)


def _are_killed(was: PodFacts, kills: Sequence[Json]) -> bool:
    """Return whether the kubelet has begun to kill every container that ran then.

    Both times are of the clock of that node. They have seconds: what happened in the second of the start may have been
    about the container before, and proves nothing.
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
