"""
The takeover of a dead consumer's queues: a watch event is a hint, reads prove the death, brokers expire the client.

Rules: while consumers live, each round of `_bind` binds their clients to pods. A hint about a pod starts a check of the
clients that are bound to it. If no client is bound to the pod, the operator reads the pod when a leader names a client
in it (`clients`), or when few other pods are being checked. Without proof the operator does nothing, and the queues
stay locked until the lease ends. Failed requests are repeated while the hint is fresh. `proof` defines what counts as
proof.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Final

from orderlymq_operator.brokers.admin import AdminError
from orderlymq_operator.brokers.answers import LockHolder
from orderlymq_operator.kube.api import Api
from orderlymq_operator.kube.errors import ApiError
from orderlymq_operator.kube.metrics import OperatorMetrics
from orderlymq_operator.kube.objects.names import LABEL_CLUSTER
from orderlymq_operator.kube.observe.inventory import ClusterKey
from orderlymq_operator.kube.observe.pods import ENDED, PodFacts, pod_facts
from orderlymq_operator.kube.resources import EVENTS, NODES, PODS, Json
from orderlymq_operator.kube.takeover.clients import NamedClients, Target
from orderlymq_operator.kube.takeover.proof import (
    KILLING,
    Binding,
    Proof,
    bind,
    host_of,
    is_out_of_service,
    proof_of,
    runs_in,
)
from orderlymq_runtime.process.supervisor import end_tasks

_log = logging.getLogger(__name__)

# From one poll of the connected clients to the next. A client that two polls show in the same place is bound to its
# pod.
BIND_S: Final = 2.0
# From one check of a pod that may be dead to the next: the delay doubles from the first value to the maximum.
_POLL_FIRST_S: Final = 0.05
_POLL_MAX_S: Final = 0.5
# A kubelet that has not reported within these seconds is probably down: fewer checks are enough.
_SOON_S: Final = 10.0
_LATE_POLL_S: Final = 5.0
# How long the operator checks after one hint. Every lock of a RocketMQ client has expired by then, so no queue is left
# to hand over.
_CHECK_MAX_S: Final = 90.0
# A leader that was just elected may not know a client that the log holds. The check therefore ends only after all
# leaders have answered for this long without a client of the dead pod.
_SURE_S: Final = 3.0
# Members without locks may still be connected, which no status reports. The kubelet gives processes two seconds to end.
_ABSENT_S: Final = 5.0
# Pods that the operator reads at the same time: a node has a hundred pods, and other requests need connections, too. If
# more pods are being checked, those that are known to have clients come first.
_AT_ONCE: Final = 4


class Takeover:
    """Takes over the queues of consumers whose pods have died; `run` until cancelled.

    Args:
        targets: the Clusters that enable the takeover, as their last reconcile found them.
        leads: whether this process is the leader and may act.
    """

    def __init__(
        self,
        api: Api,
        metrics: OperatorMetrics,
        targets: Callable[[], Iterable[Target]],
        leads: Callable[[], bool],
    ) -> None:
        self._api = api
        self._metrics = metrics
        self._targets = targets
        self._leads = leads
        self._pods: dict[str, PodFacts] = {}  # living pods, by each of their addresses
        self._uids: dict[str, PodFacts] = {}
        self._clients = NamedClients(targets)
        self._bindings: dict[ClusterKey, dict[str, Binding]] = {}
        # UIDs of pods with a bound client, or with a client that one poll has shown.
        self._bound: dict[ClusterKey, set[str]] = {}
        self._pending: dict[ClusterKey, dict[str, Binding]] = {}
        self._checks: dict[str, asyncio.Task[None]] = {}  # by UID of the pod
        self._last: dict[str, PodFacts] = {}  # pods in a check as a watch showed them last, by UID
        self._proofs: dict[str, Proof] = {}  # by UID
        # UIDs of pods in a check of which a leader named a client.
        self._named: set[str] = set()
        self._off: set[str] = set()  # nodes that are out of service
        self._gate = asyncio.Semaphore(_AT_ONCE)

    # -- hints ---------------------------------------------------------------------------------

    def pod_shown(self, found: Json, *, gone: bool) -> None:
        """Store a pod from a watch event; check the pod if the event may mean that a consumer ended."""
        labels = found["metadata"].get("labels") or {}
        if LABEL_CLUSTER in labels:
            return  # the operator's own pods run no consumers
        pod = pod_facts(found)
        known = self._uids.get(pod.uid)
        if pod.host_network:
            return
        dying = gone or pod.phase in ENDED
        ended = set() if known is None else {*known.starts} - {*pod.starts, None}
        if gone:
            self._uids.pop(pod.uid, None)
        else:
            self._uids[pod.uid] = pod
        if dying:
            self._forget_addresses(pod)
        else:
            self._pods.update(dict.fromkeys(pod.ips, pod))
        # A watch may show a node before its pods.
        if dying or ended or pod.node in self._off:
            self._start_check(known or pod)
        if pod.uid in self._checks:
            self._last[pod.uid] = pod

    def node_shown(self, found: Json) -> None:
        """Check the pods of a node that is out of service; other taints do not show that processes ended."""
        name = found["metadata"]["name"]
        if not is_out_of_service(found):
            self._off.discard(name)
            return
        self._off.add(name)
        for pod in list(self._uids.values()):
            if pod.node == name:
                self._start_check(pod)

    def stale_pod(self, uid: str) -> None:
        """Check a pod that is gone but for which no watch event reported the deletion."""
        pod = self._uids.pop(uid, None)
        if pod is not None:
            self._forget_addresses(pod)
            self._start_check(pod)

    def _forget_addresses(self, pod: PodFacts) -> None:
        for ip in pod.ips:
            if self._pods.get(ip, pod).uid == pod.uid:
                self._pods.pop(ip, None)

    def node_of(self, address: str) -> str:
        """Return the node of the living pod behind `host:port`; empty if no such pod is known."""
        pod = self._pods.get(host_of(address))
        return "" if pod is None else pod.node

    # -- binding -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Bind clients to pods until cancelled."""
        try:
            while True:
                if self._leads():
                    await asyncio.gather(*map(self._bind_or_log, self._targets()))
                await asyncio.sleep(BIND_S)
        finally:
            await end_tasks(self._checks.values())
            await self._clients.close()

    async def _bind_or_log(self, target: Target) -> None:
        try:
            await self._bind(target)
        except Exception:
            # An error of one Cluster must not stop the binding in other Clusters, nor the operator.
            _log.exception("cannot bind the clients of %s/%s", *target.key)

    async def _bind(self, target: Target) -> None:
        """Bind each client that is connected now and was connected from the same places BIND_S ago."""
        holders, complete = await self._holders(target)
        known = self._bindings.setdefault(target.key, {})
        pending = self._pending.pop(target.key, {})
        for client_id, holder in holders.items():
            place = bind(client_id, holder, self._pods) if holder.connected else None
            # A client id outlives its process: the next start of a container, or another pod, may use the same id.
            if place is None or place == known.get(client_id):
                continue
            # Bind only at the second poll: the watch may still show an old state of a container that was just
            # restarted.
            if pending.get(client_id) == place:
                known[client_id] = place
            else:
                self._pending.setdefault(target.key, {})[client_id] = place
        if complete:
            for client_id in known.keys() - holders.keys():
                del known[client_id]
        places = (*known.values(), *self._pending.get(target.key, {}).values())
        self._bound[target.key] = {place.uid for place in places}

    async def _holders(self, target: Target) -> tuple[dict[str, LockHolder], bool]:
        """Read the lock holders; return them, and whether every raft group answered."""
        holders: dict[str, LockHolder] = {}
        answers = await asyncio.gather(
            *(target.admin.lock_holders(address) for address in target.addresses),
            return_exceptions=True,
        )
        complete = target.complete
        for answer in answers:
            if isinstance(answer, AdminError):
                complete = False
                _log.debug("%s", answer)
                continue
            if isinstance(answer, BaseException):
                raise answer
            for client_id, found in answer.items():
                holders[client_id] = merged(holders.get(client_id, found), found)
        return holders, complete

    # -- observing -------------------------------------------------------------------------------

    def _start_check(self, pod: PodFacts) -> None:
        if pod.uid not in self._checks:
            task = asyncio.get_running_loop().create_task(
                self._check_until_settled(pod), name="takeover"
            )
            self._checks[pod.uid] = task
            task.add_done_callback(lambda _: self._forget_pod(pod.uid))

    def _forget_pod(self, uid: str) -> None:
        self._checks.pop(uid, None)
        self._last.pop(uid, None)
        self._proofs.pop(uid, None)
        self._named.discard(uid)

    async def _check_until_settled(self, pod: PodFacts) -> None:
        """Check a pod until it is found alive, its death is proven and its clients are expired, or the hint is old."""
        began = time.monotonic()
        delay_s = _POLL_FIRST_S
        clear_since: float | None = None
        while time.monotonic() - began < _CHECK_MAX_S:
            try:
                # A replica that loses the leadership for a moment must keep the hints that arrive meanwhile.
                first = clear_since is None
                left = await self._check(pod, began, members=first) if self._leads() else 1
                if left is None:
                    return
                if left:
                    clear_since = None
                elif clear_since is None:
                    clear_since = time.monotonic()
                elif time.monotonic() - clear_since >= _SURE_S:
                    return
            except (ApiError, AdminError) as error:
                clear_since = None
                _log.warning(
                    "cannot expire the clients of pod %s: %s; the operator tries again",
                    pod.name,
                    error,
                )
            await asyncio.sleep(delay_s)
            soon = time.monotonic() - began < _SOON_S
            delay_s = min(2 * delay_s, _POLL_MAX_S if soon else _LATE_POLL_S)

    async def _check(self, pod: PodFacts, began: float, *, members: bool) -> int | None:
        """Check once; return how many clients of the pod are left, or None if the pod lives.

        Members without a lock count only if *members* is true, because that request lists all members.
        """
        if not self._is_looked_up(pod):
            named = await self._clients.are_in(pod)
            if not named:
                return 0 if named is False and self._is_over(pod) else 1
            self._named.add(pod.uid)
        proof = self._proofs.get(pod.uid)
        if proof is None:
            async with self._gate:
                found, node = await asyncio.gather(
                    self._api.get(PODS, pod.namespace, pod.name), self._node(pod.node)
                )
                present = None if found is None else pod_facts(found)
                absent = present is None or present.uid != pod.uid
                kills = await self._kills(pod) if absent and node is not None else []
            proof = proof_of(pod, present, node, self._last.get(pod.uid), kills)
            if proof is None:
                # Either the pod lives, and another hint comes when that changes; or there is no proof yet, and the
                # kubelet may still report the end.
                return 1 if absent else None
            if proof.whole and (absent or not proof.overrules):
                self._proofs[pod.uid] = proof  # final; a taint, in contrast, may be removed again
        # All Clusters at the same time: leaders that do not answer, such as those of a lost node, must not delay the
        # others.
        counts = await asyncio.gather(
            *(
                self._expire_in(target, pod, proof, began, members=members)
                for target in self._targets()
            ),
            return_exceptions=True,
        )
        left = 0
        for count in counts:
            if isinstance(count, BaseException):
                raise count
            left += count
        return left

    def _is_looked_up(self, pod: PodFacts) -> bool:
        """Return whether the operator reads a pod now: a client in it is known, or few pods are being checked."""
        return (
            pod.uid in self._named
            or len(self._checks) <= _AT_ONCE
            or any(pod.uid in uids for uids in self._bound.values())
        )

    def _is_over(self, pod: PodFacts) -> bool:
        """Return whether a pod without named clients counts as having no clients left.

        Either the pod still exists, and another hint comes when it ends; or its kubelet had ended it. If neither is
        known, the pod's processes may still run and become consumers.
        """
        if pod.uid in self._uids or pod.is_over or not pod.ips:
            return True
        return proof_of(pod, None, {}, self._last.get(pod.uid)) is not None

    async def _expire_in(
        self, target: Target, pod: PodFacts, proof: Proof, began: float, *, members: bool
    ) -> int:
        """Expire the clients of a dead pod in one Cluster; return how many are left."""
        found = await self._expire_holders(target, pod, proof, began)
        if not found and members:
            found = await self._expire_members(target, pod, proof, began)
        return found

    async def _node(self, name: str) -> Json | None:
        return await self._api.get(NODES, None, name) if name else None

    async def _kills(self, pod: PodFacts) -> list[Json]:
        chosen = f"involvedObject.uid={pod.uid},reason={KILLING}"
        return await self._api.list(EVENTS, pod.namespace, fields=chosen)

    async def _expire_holders(
        self, target: Target, pod: PodFacts, proof: Proof, began: float
    ) -> int:
        """Expire the lock holders of a dead pod; return how many are left, plus one if a raft group did not answer."""
        holders, complete = await self._holders(target)
        known = self._bindings.get(target.key, {})
        left = 0 if complete else 1  # a leader that did not answer may know more clients
        for client_id, holder in holders.items():
            binding = known.get(client_id)
            if binding is not None:
                # A lock that was requested from another address belongs to a process that started later.
                mine = binding.is_in(pod) and holder.addresses <= binding.addresses
            else:
                mine = self._was_in(pod, client_id, holder.address)
            if not mine:
                continue
            left += 1  # includes clients expired now: the next check shows whether the log has applied that
            if holder.connected and not (proof.overrules and host_of(holder.address) in pod.ips):
                continue
            await self._expire(target, client_id, proof, holder.addresses)
            self._metrics.takeovers.observe(time.monotonic() - began)
        return left

    def _was_in(self, pod: PodFacts, client_id: str, address: str) -> bool:
        """Return whether a client that was never bound to a pod ran in *pod*.

        Its id and address decide, unless another living pod, or a restart of this pod, has the address now. On a lost
        node, the pod itself still counts as living.
        """
        having = self._pods.get(host_of(address), pod)
        same = having.uid == pod.uid and having.starts == pod.starts
        return same and runs_in(pod, client_id, address)

    async def _expire_members(
        self, target: Target, pod: PodFacts, proof: Proof, began: float
    ) -> int:
        """Expire members of a dead pod that hold no locks any more; return how many there were.

        Otherwise a newly elected leader keeps a member from its log, and a share of the queues for it, for half a
        minute.
        """
        found = await asyncio.gather(*map(target.admin.all_members, target.addresses))
        members: dict[str, set[str]] = {}
        for client_id, places in (each for answer in found for each in answer.items()):
            members.setdefault(client_id, set()).update(places)
        gone = {
            name: addresses
            for name, addresses in members.items()
            if all(self._was_in(pod, name, address) for address in addresses)
        }
        sure = proof.whole and time.monotonic() - began >= _ABSENT_S
        if not (sure or proof.overrules):
            return len(gone)  # a member may still be connected
        for client_id, addresses in gone.items():
            await self._expire(target, client_id, proof, addresses)
        return len(gone)

    async def _expire(
        self, target: Target, client_id: str, proof: Proof, ends: Collection[str]
    ) -> None:
        began = time.monotonic()
        await asyncio.gather(
            *(
                target.admin.expire_client(address, client_id, proof.text, ends)
                for address in target.addresses
            )
        )
        _log.info(
            "client %s of %s/%s is dead: %s; reported in %.0f ms",
            client_id,
            *target.key,
            proof.text,
            1000 * (time.monotonic() - began),
        )


def merged(one: LockHolder, other: LockHolder) -> LockHolder:
    """Merge the reports of two raft groups about a client; the one with its connection has its current address, too."""
    said = one if one.connected else other
    return replace(said, addresses=one.addresses | other.addresses)
