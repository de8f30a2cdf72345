"""
The takeover of the queues of a dead consumer: watches hint, reads prove, brokers expire the client.

Rules: while consumers live their clients are bound to pods, at every round of `_bind` and whenever a pod changes. A hint
about a pod leads to a check of exactly the clients bound to it. A pod to which none is bound is looked up when a leader
names a client of it (`clients`), or when nobody else waits to be looked up. Without proof nothing happens, and the lease
decides. Whatever fails on the way is tried again while the hint is fresh. `proof` says what counts as proof.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Final

from orderlymq_operator.brokers.admin import AdminError
from orderlymq_operator.brokers.answers import LockHolder
from orderlymq_operator.kube.api import Api, ApiError
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

# From one poll of the connected clients to the next; a client that two polls show is bound to its pod.
BIND_S: Final = 2.0
# From one check of a pod that may be dead to the next: doubled from the first to the maximum.
_POLL_FIRST_S: Final = 0.05
_POLL_MAX_S: Final = 0.5
# A kubelet that has not reported within some seconds is probably down: fewer checks are enough.
_SOON_S: Final = 10.0
_LATE_POLL_S: Final = 5.0
# How long one hint is checked. Beyond the lease of any lock of RocketMQ's clients there is nothing left to hand over.
_CHECK_MAX_S: Final = 90.0
# A leader that was just elected, or just replaced, may not know a client that the log holds: nobody of a dead pod
# has to be seen for this long, by leaders that all answer, before the check ends.
_SURE_S: Final = 3.0
# Members without locks may be connected, which no status reports; the kubelet gives processes two seconds to end.
_ABSENT_S: Final = 5.0
# Pods that are looked up at a time: a machine has a hundred of them, and other requests find connections free, too. When
# more are checked, those come first that are known to have clients.
_AT_ONCE: Final = 4


class Takeover:
    """Watches over the pods of consumers; `run` until cancelled.

    Args:
        targets: the Clusters that want this, as their last reconcile found them.
        leads: whether this process may act.
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
        self._pods: dict[str, PodFacts] = {}  # by each of their addresses, only living ones
        self._uids: dict[str, PodFacts] = {}
        self._clients = NamedClients(targets)
        self._bindings: dict[ClusterKey, dict[str, Binding]] = {}
        # UIDs of pods, also where a client was seen once.
        self._bound: dict[ClusterKey, set[str]] = {}
        self._pending: dict[ClusterKey, dict[str, Binding]] = {}
        self._checks: dict[str, asyncio.Task[None]] = {}  # by UID of the pod
        self._last: dict[str, PodFacts] = {}  # how a watch showed those last, by UID
        self._proofs: dict[str, Proof] = {}  # by UID
        # UIDs of pods that are checked, and of which a leader named a client.
        self._named: set[str] = set()
        self._off: set[str] = set()  # nodes that are out of service
        self._gate = asyncio.Semaphore(_AT_ONCE)

    # -- hints ---------------------------------------------------------------------------------

    def pod_shown(self, found: Json, *, gone: bool) -> None:
        """Note what a watch shows of a pod; check the pod if that may mean the end of a consumer."""
        labels = found["metadata"].get("labels") or {}
        if LABEL_CLUSTER in labels:
            return  # our own pods consume nothing
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
        # A node may be shown before its pods.
        if dying or ended or pod.node in self._off:
            self._start_check(known or pod)
        if pod.uid in self._checks:
            self._last[pod.uid] = pod

    def node_shown(self, found: Json) -> None:
        """Check the pods of a node that is out of service; other taints say nothing of processes."""
        name = found["metadata"]["name"]
        if not is_out_of_service(found):
            self._off.discard(name)
            return
        self._off.add(name)
        for pod in list(self._uids.values()):
            if pod.node == name:
                self._start_check(pod)

    def stale_pod(self, uid: str) -> None:
        """Check a pod that a watch still showed although it is gone."""
        pod = self._uids.pop(uid, None)
        if pod is not None:
            self._forget_addresses(pod)
            self._start_check(pod)

    def _forget_addresses(self, pod: PodFacts) -> None:
        for ip in pod.ips:
            if self._pods.get(ip, pod).uid == pod.uid:
                self._pods.pop(ip, None)

    def node_of(self, address: str) -> str:
        """Return the node of the living pod behind `host:port`; empty where none is known."""
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
            # One Cluster must not end the bindings of others, nor the operator.
            _log.exception("cannot bind the clients of %s/%s", *target.key)

    async def _bind(self, target: Target) -> None:
        """Bind who is connected and was so BIND_S ago, too, from the same places."""
        holders, complete = await self._holders(target)
        known = self._bindings.setdefault(target.key, {})
        pending = self._pending.pop(target.key, {})
        for client_id, holder in holders.items():
            place = bind(client_id, holder, self._pods) if holder.connected else None
            # A client id outlives its process: the next start of a container, or another pod, may have it.
            if place is None or place == known.get(client_id):
                continue
            # Seen twice: what a watch shows of a container that was just restarted may be old.
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
        """Read who holds locks; return that, and whether every raft group has answered."""
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
        """Check a pod until it is proven gone and its clients are expired, or the hint is old."""
        began = time.monotonic()
        delay_s = _POLL_FIRST_S
        clear_since: float | None = None
        while time.monotonic() - began < _CHECK_MAX_S:
            try:
                # An operator that stands by for a moment must keep the hints that come meanwhile.
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
                    "cannot expire the clients of pod %s: %s; they are tried again", pod.name, error
                )
            await asyncio.sleep(delay_s)
            soon = time.monotonic() - began < _SOON_S
            delay_s = min(2 * delay_s, _POLL_MAX_S if soon else _LATE_POLL_S)

    async def _check(self, pod: PodFacts, began: float, *, members: bool) -> int | None:
        """Check once; return how many clients of the pod are left, or None when the pod lives.

        Members without a lock are counted only when *members* is true: that lists all of them.
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
                # It lives, and when that changes another hint comes; or nobody knows yet, and the kubelet may report it.
                return 1 if absent else None
            if proof.whole and (absent or not proof.overrules):
                self._proofs[pod.uid] = proof  # nothing takes it back, as a person may a taint
        # At the same time: leaders that do not answer, as those of a lost node, keep nobody else's queues.
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
        """Return whether a pod is read before a leader has named a client of it: one is bound to it, or nobody waits for that."""
        return (
            pod.uid in self._named
            or len(self._checks) <= _AT_ONCE
            or any(pod.uid in uids for uids in self._bound.values())
        )

    def _is_over(self, pod: PodFacts) -> bool:
        """Return whether a pod of which no client is named needs no more than the usual checks.

        It stands there, and when it ends another hint comes; or its kubelet had ended it. Processes of others may run on, and
        become consumers.
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
        """Expire the lock holders of a dead pod; return how many are left, one more if a raft group did not answer."""
        holders, complete = await self._holders(target)
        known = self._bindings.get(target.key, {})
        left = 0 if complete else 1  # who could not be asked may know more
        for client_id, holder in holders.items():
            binding = known.get(client_id)
            if binding is not None:
                # A lock that was asked for from elsewhere is of a process that came later.
                mine = binding.is_in(pod) and holder.addresses <= binding.addresses
            else:
                mine = self._was_in(pod, client_id, holder.address)
            if not mine:
                continue
            left += 1  # also who is expired now: the next check shows whether that has come into the log
            if holder.connected and not (proof.overrules and host_of(holder.address) in pod.ips):
                continue
            await self._expire(target, client_id, proof, holder.addresses)
            self._metrics.takeovers.observe(time.monotonic() - began)
        return left

    def _was_in(self, pod: PodFacts, client_id: str, address: str) -> bool:
        """Return whether a client that was not seen before it died was in *pod*.

        Its id and address decide, unless another living pod has the address by now, or another start of this one. On a
        lost node the pod itself still stands there as living.
        """
        having = self._pods.get(host_of(address), pod)
        same = having.uid == pod.uid and having.starts == pod.starts
        return same and runs_in(pod, client_id, address)

    async def _expire_members(
        self, target: Target, pod: PodFacts, proof: Proof, began: float
    ) -> int:
        """Expire members of a dead pod whose locks have ended; return how many there were.

        A leader that was just elected keeps a member of its log for half a minute, and a share of the queues for it.
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
            return len(gone)  # it may be connected
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
    """Return what two raft groups know of a client: who has a connection has its address, too."""
    said = one if one.connected else other
    return replace(said, addresses=one.addresses | other.addresses)
