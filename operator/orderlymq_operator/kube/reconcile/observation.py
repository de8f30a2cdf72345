"""
Observation of one Cluster before a reconcile acts: turns custom resources and objects into the reconcile's inputs.

Begin with `Observer.observe`. `backend` reads the brokers later. Rule: this module writes only Secrets that are missing:
certificates, which the forms of the broker groups name, and the secrets of the Cluster and its Users.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import aiohttp

from orderlymq_operator.brokers.objectthread import beside_loop
from orderlymq_operator.kube.api import Api
from orderlymq_operator.kube.cachedstate import may_change
from orderlymq_operator.kube.certificates.authority import CertificateError
from orderlymq_operator.kube.certificates.expiry import certificates_condition
from orderlymq_operator.kube.objects.cluster import (
    Environment,
    RaftGroupFacts,
    kube_revision,
    name_server_revision,
)
from orderlymq_operator.kube.observe.cluster import Live
from orderlymq_operator.kube.observe.credentials import Credentials
from orderlymq_operator.kube.observe.desired import (
    MESSAGE_MAX,
    DesiredState,
    desired_state,
    leaves,
)
from orderlymq_operator.kube.observe.faulttolerance import fault_tolerance
from orderlymq_operator.kube.observe.inventory import ClusterKey, Inventory, Item
from orderlymq_operator.kube.observe.listeners import needs_nodes
from orderlymq_operator.kube.observe.nodes import Nodes
from orderlymq_operator.kube.reconcile import groupremoval
from orderlymq_operator.kube.reconcile.accepted import (
    carried_out,
    image_of,
    with_pull_secrets,
    with_tls_step,
)
from orderlymq_operator.kube.reconcile.backend import Defaults, KubeBackend, Memory
from orderlymq_operator.kube.reconcile.backups.bootstrap import restored_condition, restored_id
from orderlymq_operator.kube.reconcile.canary import groups_in_use, with_canary
from orderlymq_operator.kube.reconcile.certificates import Certificates, in_use
from orderlymq_operator.kube.reconcile.desiredobjects import forms_of
from orderlymq_operator.kube.reconcile.scope import Scope
from orderlymq_operator.kube.reconcile.status import Findings, previous_conditions
from orderlymq_operator.plan import tenants
from orderlymq_operator.plan.actions import ConditionReport
from orderlymq_operator.resources.kinds import Cluster


class Observer:
    """Observes Clusters; *label_of* returns a label of a node."""

    def __init__(
        self,
        api: Api,
        inventory: Inventory,
        defaults: Defaults,
        access: Credentials,
        nodes: Nodes,
        label_of: Callable[[str, str], str | None],
    ) -> None:
        self._api = api
        self._inventory = inventory
        self._defaults = defaults
        self._session = aiohttp.ClientSession()
        self._credentials = access
        self._certificates = Certificates(api, server_now=api.server_time)
        self._nodes = nodes
        self._label_of = label_of
        self._listed: dict[ClusterKey, frozenset[str]] = {}
        self._memories: dict[ClusterKey, Memory] = {}

    async def close(self) -> None:
        """Close all connections."""
        await self._credentials.close()
        await self._session.close()

    def forget(self, key: ClusterKey) -> None:
        """Drop all state of a Cluster that is gone."""
        self._certificates.forget(key)
        self._credentials.forget(key)
        self._memories.pop(key, None)

    @asynccontextmanager
    async def leaving_listed(self, key: ClusterKey) -> AsyncIterator[None]:
        """List the kinds of leaving parts, for one reconcile.

        Another object may declare the same name in a namespace whose watch is behind. A part that only these lists show
        as leaving is unsure in this reconcile; the next one lists its kind again.
        """
        leaving = {item.uid: item.kind for item in self._inventory.parts(key) if leaves(item)}
        for kind in set(leaving.values()):
            self._inventory.invalidate(kind)
        if leaving:
            await self._inventory.refresh(key)
        self._listed[key] = frozenset(leaving)
        try:
            yield
        finally:
            self._listed.pop(key, None)

    async def observe(
        self,
        item: Item,
        live: Live,
        before: Scope | None,
        expanding: frozenset[str],
    ) -> Scope:
        """Return the inputs of a reconcile.

        *before* are the inputs of the previous reconcile, *expanding* the topics whose queues are changing.

        Raises:
            ApiError: an object cannot be read or made now.
            CertificateError: the Cluster cannot continue without its certificates.
        """
        cluster, confirmation = carried_out(item, live)
        accepted = cluster.spec
        cluster = with_pull_secrets(cluster, self._defaults.pull_secrets)
        cluster, tls_waits = with_tls_step(cluster, live)
        state = await self._desired_state(cluster, item.key)
        state.desired = groupremoval.with_standing_groups(state.desired, live)
        image = image_of(cluster, live, self._defaults.image)
        backup_id = restored_id(item, cluster, live)
        forms, uncertified = await self._certified(item, live, state, restores=backup_id is None)
        canaries = groups_in_use(live, state.desired.cluster)
        state.desired = await beside_loop(with_canary, state.desired, canaries)
        environment = Environment(
            image=image,
            pull_policy=cluster.spec.image_pull_policy or self._defaults.pull_policy,
            revision=kube_revision(cluster, image),
            name_server_revision=name_server_revision(cluster, image),
            groups=forms,
            operator_namespace=self._defaults.namespace,
            accepted=accepted,
            restored=backup_id or "",
            routes=live.routes,
            draining=state.desired.draining,
        )
        paused = cluster.spec.update.mode == "Paused"
        missing = await self._credentials.missing_secret(cluster)
        runs = bool(live.stateful_sets())
        admin = await self._credentials.admin(cluster, live.pods.values(), runs=runs)
        missing = missing or self._credentials.changed_secret(item.key)
        found_secrets = await self._credentials.secrets(state)
        backend = KubeBackend(
            self._api,
            self._session,
            admin,
            state.desired,
            live,
            environment,
            secrets=found_secrets,
            fingerprints=self._credentials.fingerprints(state, found_secrets),
            pages=await self._credentials.pages(cluster, live.pods.values()),
            holds=paused or bool(missing) or self._certificates.are_lost(item.key),
            expanding=expanding,
            memory=self._memories.setdefault(item.key, Memory()),
            nodes=await self._nodes.read() if needs_nodes(cluster) else [],
            label_of=self._label_of,
            held=[tls_waits] if tls_waits else [],
            used_before={} if before is None else before.backend.in_use,
        )
        found = Findings(paused=paused or item.is_paused, default_image=self._defaults.image)
        found.confirmation = confirmation
        found.restored = restored_condition(item, backup_id)
        if missing or uncertified:
            found.problem = ConditionReport("False", "SecretMissing", missing or uncertified)
        self._set_conditions(found, item, cluster, live, state)
        return Scope(item, cluster, state, live, backend, found, backup_id)

    def _set_conditions(
        self, found: Findings, item: Item, cluster: Cluster, live: Live, state: DesiredState
    ) -> None:
        """Set the conditions of a Cluster that depend only on its objects."""
        found.scale_down = groupremoval.blocked(item, cluster, live)
        found.tolerance = fault_tolerance(state.desired.cluster, live, self._label_of)
        previous = previous_conditions(item).get("FaultTolerant")
        if found.tolerance.status == "Unknown" and previous is not None:
            found.tolerance = previous  # a pod that is being scheduled does not change the report
        found.certificates = certificates_condition(
            in_use(cluster, live), datetime.now(UTC), paused=found.paused
        )
        if item.manifest is None:
            text = f"{item.error}; the previous spec is applied"
            found.problem = ConditionReport("False", "Invalid", text[:MESSAGE_MAX])

    async def _desired_state(self, cluster: Cluster, key: ClusterKey) -> DesiredState:
        """Return the desired state of a Cluster and its parts; computed in a thread, because many Topics take long."""
        is_unsure = partial(self._is_unsure, cluster)
        return await beside_loop(
            lambda: desired_state(cluster, self._inventory.parts(key), is_unsure)
        )

    async def _certified(
        self, item: Item, live: Live, state: DesiredState, *, restores: bool
    ) -> tuple[dict[str, RaftGroupFacts], str]:
        """Return the forms of the broker groups, and the problem with their certificates, or empty.

        New broker groups that cannot get certificates are not desired for now, so that they do not delay the others.

        Raises:
            ApiError: a Secret cannot be read or made now.
            CertificateError: the Cluster cannot continue without certificates, or it *restores* and needs every broker
                group.
        """
        cluster = state.desired.cluster
        forms, problem = await self._certificates.settle(
            cluster,
            live,
            forms_of(state.desired, live, cluster.group_names),
            paused=item.is_paused,
        )
        if len(forms) < cluster.spec.groups:
            if restores:
                raise CertificateError(problem)
            cluster = cluster.with_spec(groups=len(forms))
            state.desired = replace(state.desired, cluster=cluster)
        return forms, problem

    def _is_unsure(self, cluster: Cluster, item: Item) -> bool:
        """Return whether an unknown object may declare the same name as a leaving part.

        An account is deleted even if a namespace cannot be read, because it would stay valid otherwise. If another User
        declares it, it is made again.
        """
        unlisted = self._inventory.unlisted(item.kind) if item.kind != "User" else ()
        if any(tenants.allows(cluster, namespace) for namespace in unlisted):
            return True
        assert item.cluster is not None, "a part names its Cluster"
        # With cached state, it is enough to find that something must be deleted: the next reconcile lists before it
        # deletes.
        return may_change() and item.uid not in self._listed.get(item.cluster, ())
