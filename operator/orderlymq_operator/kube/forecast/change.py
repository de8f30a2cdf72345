"""
The forecast for one Cluster in Kubernetes: the planner's steps, and decisions outside the planner.

Pure. Rules: the reconcile's own functions decide which objects differ, which volumes grow, which broker groups will be
removed and which pods have a previous form. As with `kubectl apply`, a refused object stays unchanged and the others
are applied.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Final

from pydantic.alias_generators import to_snake

from orderlymq_operator.kube.certificates.record import Issued
from orderlymq_operator.kube.forecast.applied import applied
from orderlymq_operator.kube.forecast.present import missing_secret, observed_state, secrets_of
from orderlymq_operator.kube.objects import drift, names
from orderlymq_operator.kube.objects.cluster import (
    Environment,
    RaftGroupFacts,
    accepted_spec,
    kube_revision,
    name_server_revision,
    settings_objects,
)
from orderlymq_operator.kube.objects.listeners import Addresses
from orderlymq_operator.kube.observe.cluster import Live
from orderlymq_operator.kube.observe.desired import DesiredState, desired_state, subject_of
from orderlymq_operator.kube.observe.gateway import has_routes
from orderlymq_operator.kube.observe.inventory import Item, read_item
from orderlymq_operator.kube.observe.listeners import outside_view, published_addresses
from orderlymq_operator.kube.reconcile import groupremoval, volumes
from orderlymq_operator.kube.reconcile.accepted import image_of, with_pull_secrets, with_tls_step
from orderlymq_operator.kube.reconcile.backend import lost_volume_text
from orderlymq_operator.kube.reconcile.canary import with_canary
from orderlymq_operator.kube.reconcile.certificates import group_certificates
from orderlymq_operator.kube.reconcile.desiredobjects import (
    early_objects,
    forms_of,
    late_objects,
    surplus_objects,
)
from orderlymq_operator.kube.reconcile.status import previous_conditions
from orderlymq_operator.kube.resources import (
    CONFIG_MAPS,
    STATEFUL_SETS,
    Json,
    resource_of,
)
from orderlymq_operator.plan.actions import (
    Observed,
    Refuse,
    RestartReplica,
    StopReplica,
    Subject,
)
from orderlymq_operator.plan.forecast.consequences import live_effects
from orderlymq_operator.plan.forecast.effects import Effect, Forecast, ResourceForecast
from orderlymq_operator.plan.forecast.forecast import forecast
from orderlymq_operator.plan.guard import ANNOTATION_CONFIRM, dangerous, unconfirmed
from orderlymq_operator.plan.refusals import refusals
from orderlymq_operator.resources.crd import fields_set_once
from orderlymq_operator.resources.kinds import Cluster, Desired, Resource
from orderlymq_protocol.plurals import counted

# Newer than everything that exists: if two objects declare the same name, the older one has it.
_NEWEST: Final = "9999-01-01T00:00:00Z"
_UNKNOWN_IMAGE: Final = "the operator's image"


@dataclass(frozen=True, slots=True)
class Present:
    """Existing objects of one Cluster.

    Attributes:
        item: the Cluster; None if it does not exist yet.
        parts: its Topics, ConsumerGroups and Users, the oldest of a kind first.
    """

    item: Item | None
    parts: Sequence[Item]
    live: Live


def item_of(manifest: Resource, namespace: str, found: Json | None) -> Item:
    """Return the object that results when *manifest* is applied over *found*, the existing object or None."""
    resource = resource_of({"kind": manifest.kind})
    if found is None:
        meta = manifest.metadata
        new: Json = {
            "metadata": {
                "name": meta.name,
                "namespace": namespace,
                "annotations": meta.annotations,
                "uid": "",
                "resourceVersion": "",
                "generation": 1,
                "creationTimestamp": _NEWEST,
            },
            "spec": manifest.model_dump(mode="json", exclude_none=True)["spec"],
        }
        return read_item(resource, new)
    after = applied(manifest, found)
    item = read_item(resource, after)
    if item.manifest is not None and item.manifest == read_item(resource, found).manifest:
        return item
    later = {**after["metadata"], "generation": item.generation + 1}
    return read_item(resource, {**after, "metadata": later})


def forecast_change(present: Present, changed: Sequence[Item]) -> Forecast:
    """Return the forecast for a Cluster when the objects in *changed* replace those of the same names."""
    by_name = {(each.kind, each.namespace, each.name): each for each in changed}
    cluster_item = next((each for each in changed if each.kind == "Cluster"), present.item)
    if cluster_item is None or not isinstance(cluster_item.manifest, Cluster):
        return _without_cluster(changed, "" if cluster_item is None else cluster_item.error)
    parts = [by_name.pop((each.kind, each.namespace, each.name), each) for each in present.parts]
    parts += [each for each in by_name.values() if each.kind != "Cluster"]
    before = _state(present.item, present.parts)
    after = desired_state(cluster_item.manifest, parts)
    refused = _refused(before, after.desired)
    told = {(each.name, each.field) for each in refused}
    refused += [
        each for each in _set_later(present, changed) if (each.name, each.field) not in told
    ]
    if refused and before is not None:
        names_out = {(each.kind, each.name) for each in refused}
        kept = [each for each in changed if (each.kind, subject_of(each).name) not in names_out]
        if len(kept) < len(changed):
            rest = forecast_change(present, kept)
            return replace(rest, refusals=(*refused, *rest.refusals))
    said = _forecast(present, before, after, cluster_item)
    own = {(each.kind, subject_of(each).name) for each in changed}
    others = [each for each in said.refusals if (each.kind, each.name) not in own]
    if not others or before is None or present.item is None:
        return said
    stood = _forecast(present, before, before, present.item).refusals
    return _waiting([each for each in others if each in stood], said)


def _waiting(others: Collection[Refuse], said: Forecast) -> Forecast:
    """Return the forecast *said* with *others* as waiting, not as refused: they waited before the change, too."""
    waits = [
        ResourceForecast(
            Subject(each.kind, each.name),
            (Effect("Waits", f"ResourceConflict: {each}", (each.name,)),),
        )
        for each in others
    ]
    refusals = tuple(each for each in said.refusals if each not in others)
    return replace(said, resources=(*said.resources, *waits), refusals=refusals)


def _forecast(
    present: Present, before: DesiredState | None, after: DesiredState, item: Item
) -> Forecast:
    live, cluster = present.live, after.desired.cluster
    desired = with_canary(groupremoval.with_standing_groups(after.desired, live))
    pulling = with_pull_secrets(desired.cluster, _pull_secrets(cluster, live))
    desired = replace(desired, cluster=pulling)
    environment, steps = _environment(cluster, desired, live, _default_image(present.item, live))
    observed = Observed(secrets=secrets_of(after))
    if before is not None:
        found = observed_state(desired.cluster, before, live, environment)
        observed = replace(found, secrets=secrets_of(after))
    said = forecast(desired, observed, whole=False)
    beside = [*_beside(cluster, desired, live, environment, steps), *_removed_data(said)]
    beside += _kept_pods(said, live)
    resources = []
    for each in said.resources:
        effects = each.effects
        if each.subject.kind == "Cluster":
            waits = _held(item, cluster, present.item) if effects or beside else []
            old = _carried_out(before, live)
            lives = live_effects(old, cluster) if old is not None else ()
            # Missing confirmations hold back the whole edit of the Cluster; the other effects follow the confirmation.
            acts = unconfirmed(old, cluster, item.annotations) if before is not None else ()
            confirms = [
                Effect("NeedsConfirmation", f"{act.name}: {act.text}; {act.advice}", (act.token,))
                for act in acts
            ]
            effects = (*confirms, *waits, *effects, *lives, *beside)
        if each.subject.kind == "User" and (text := missing_secret(after.subjects[each.subject])):
            effects = (Effect("Waits", f"SecretMissing: {text}", (each.subject.name,)), *effects)
        resources.append(ResourceForecast(each.subject, effects))
    for subject, verdict in after.verdicts.items():
        text = f"{verdict.reason}: {verdict.message}"
        resources.append(ResourceForecast(subject, (Effect("Waits", text, (subject.name,)),)))
    return replace(said, resources=tuple(resources))


def _without_cluster(changed: Sequence[Item], error: str) -> Forecast:
    text = error or "no Cluster of this name exists yet; nothing happens before it does"
    return Forecast(
        tuple(
            ResourceForecast(subject_of(each), (Effect("Waits", text, (each.name,)),))
            for each in changed
        )
    )


def _state(item: Item | None, parts: Sequence[Item]) -> DesiredState | None:
    if item is None or not isinstance(item.manifest, Cluster):
        return None
    return desired_state(item.manifest, parts)


def _refused(before: DesiredState | None, desired: Desired) -> list[Refuse]:
    """Return the changes that the API server refuses: the schemas have the same rules as `refusals`."""
    if before is None:
        return []
    accepted = before.desired
    cluster = accepted.cluster
    if desired.cluster.spec.scale_down.policy == "Drain":
        groups = min(cluster.spec.groups, desired.cluster.spec.groups)
        accepted = replace(accepted, cluster=cluster.with_spec(groups=groups))
    # The API server needs no confirmation, so all are given here; only the operator needs them.
    tokens = " ".join(act.token for act in dangerous(accepted.cluster, desired.cluster))
    meta = desired.cluster.metadata.model_copy(update={"annotations": {ANNOTATION_CONFIRM: tokens}})
    confirmed = desired.cluster.model_copy(update={"metadata": meta})
    modes = frozenset([cluster.spec.tls.mode])
    found = Observed(accepted=accepted, tls_modes=modes)
    return refusals(replace(desired, cluster=confirmed), found)


def _set_later(present: Present, changed: Sequence[Item]) -> Iterator[Refuse]:
    """Yield changes of fields that can only be set at creation, even if the declared name would stay the same."""
    known = {(each.kind, each.namespace, each.name): each for each in present.parts}
    if present.item is not None:
        known["Cluster", present.item.namespace, present.item.name] = present.item
    for item in changed:
        old = known.get((item.kind, item.namespace, item.name))
        if old is not None:
            yield from set_later(old, item)


def set_later(old: Item, item: Item) -> Iterator[Refuse]:
    """Yield the differing fields of one object that can only be set at creation, not set, changed or removed later."""
    if old.manifest is None or item.manifest is None:
        return
    for field in fields_set_once(item.kind):
        if _value(old.manifest, field) != _value(item.manifest, field):
            advice = "leave it as it is, or create another object"
            reason = "it cannot be set, changed or removed later"
            yield Refuse(item.kind, subject_of(item).name, f"spec.{field}", reason, advice)


def _value(manifest: Resource, field: str) -> object:
    return reduce(getattr, to_snake(field).split("."), manifest.spec)


def _environment(
    cluster: Cluster, desired: Desired, live: Live, default_image: str
) -> tuple[Environment, int]:
    """Return the environment of the pods after the change, and the number of steps that replica certificates need."""
    image = image_of(cluster, live, default_image)
    forms, steps = {}, 0
    for name, form in forms_of(desired, live, desired.cluster.group_names).items():
        forms[name], more = _certified(desired.cluster, live, name, form)
        steps = max(steps, more)
    current = kube_revision(cluster, image)
    environment = Environment(
        image=image,
        pull_policy=_pull_policy(cluster, live),
        revision=f"{current}, other certificates" if steps else current,
        name_server_revision=name_server_revision(cluster, image),
        groups=forms,
        operator_namespace=_operator_namespace(live),
        accepted=cluster.spec,
        routes=live.routes,
        draining=desired.draining,
        addresses=_addresses(desired.cluster, live),
    )
    return environment, steps


def _default_image(item: Item | None, live: Live) -> str:
    """Return the operator's default image: that of the pods if the last report says that they are up to date."""
    cluster = None if item is None else item.manifest
    report = {} if item is None else previous_conditions(item)
    is_known = "UpdateAvailable" in report and report["UpdateAvailable"].status == "False"
    if not (is_known and isinstance(cluster, Cluster) and cluster.spec.image is None):
        return _UNKNOWN_IMAGE
    keep = cluster.spec.update.model_copy(update={"on_operator_upgrade": "Keep"})
    return image_of(cluster.with_spec(update=keep), live, _UNKNOWN_IMAGE)


def _addresses(cluster: Cluster, live: Live) -> Addresses:
    """Return the known addresses for clients of other networks; addresses of nodes stay, because nodes are not read."""
    present = published_addresses(live.find(CONFIG_MAPS, names.name_server_set(cluster)))
    view = outside_view(cluster, live.find, (), present, routes=live.routes is not None)
    of_nodes = {
        each.name: present.get(each.name, {})
        for each in cluster.spec.listeners
        if each.type == "NodePort" and each.advertised_host is None
    }
    return {**view.addresses, **of_nodes}


def _certified(
    cluster: Cluster, live: Live, name: str, form: RaftGroupFacts
) -> tuple[RaftGroupFacts, int]:
    """Return *form* with the certificates that its StatefulSet names, and the number of steps to the desired mode."""
    present = live.find(STATEFUL_SETS, name)
    if present is None:
        return form, 0
    notes = present["metadata"].get("annotations") or {}
    issued = Issued.parsed(notes.get(names.ANNOTATION_CERTIFICATES))
    found = group_certificates(cluster, live, name, form, paused=False)
    wanted = found.mode if found is not None else None
    now = issued.mode if issued is not None else None
    # The permissive mode lies between plain and enforced connections.
    steps = (
        0
        if wanted == now
        else 2
        if now is None or cluster.spec.security.internal_tls == "Disabled"
        else 1
    )
    return replace(form, certificates=issued), steps


def _pull_policy(cluster: Cluster, live: Live) -> str:
    """Return the pull policy of pods; if the manifest sets none, the current one stays."""
    if cluster.spec.image_pull_policy is not None:
        return cluster.spec.image_pull_policy
    sets = live.stateful_sets()
    if not sets:
        return "IfNotPresent"
    return str(sets[0]["spec"]["template"]["spec"]["containers"][0].get("imagePullPolicy"))


def _pull_secrets(cluster: Cluster, live: Live) -> list[str]:
    """Return the pull Secrets of the current pods, which are the operator's if the manifest names none."""
    found = live.stateful_sets()[:1]
    return [
        each["name"]
        for made in found
        for each in made["spec"]["template"]["spec"].get("imagePullSecrets", [])
    ]


def _operator_namespace(live: Live) -> str:
    """Return the first namespace that a NetworkPolicy allows, which is the operator's; "default" without policies."""
    for (kind, _), made in live.made.items():
        if kind == "NetworkPolicy":
            chosen: Mapping[str, Any] = made["spec"]["ingress"][0]["from"][0].get(
                "namespaceSelector", {}
            )
            return str(chosen.get("matchLabels", {}).get("kubernetes.io/metadata.name", "default"))
    return "default"


# -- beside the planner ------------------------------------------------------------------------------------------------


def _beside(
    cluster: Cluster, desired: Desired, live: Live, environment: Environment, steps: int
) -> Iterator[Effect]:
    """Yield the effects of the reconcile in addition to the planner's steps."""
    if steps:
        text = f"certificates between replicas change in {steps} steps; every replica restarts in each of them"
        yield Effect("Changes", text, tuple(environment.groups))
    _, waits = with_tls_step(cluster, live)
    if waits:
        text = f"{waits}; pods restart once for each of the two modes"
        yield Effect("Waits", text, (cluster.metadata.name,))
    if has_routes(cluster.spec.listeners) and live.routes is None:
        text = "listeners of type TLSRoute do not work until Gateway API's definition of TLSRoute is installed"
        yield Effect("Waits", text, (cluster.metadata.name,))
    small = volumes.small_claims(live, environment.groups, str(cluster.spec.storage.size))
    if small:
        text = f"{counted(len(small), 'volume')} will grow to {cluster.spec.storage.size}, if their StorageClass lets them"
        yield Effect("Changes", text, tuple(f"PersistentVolumeClaim/{each.name}" for each in small))
    wanted = [
        *early_objects(desired.cluster, environment),
        *late_objects(desired.cluster, environment, live),
    ]
    # After the pods have restarted, the settings files of the previous pods are removed.
    final = [*wanted, *settings_objects(cluster, environment)]
    differ = list(
        dict.fromkeys(
            f"{each['kind']}/{each['metadata']['name']}"
            for each in drift.changes(final, live.made.values())
        )
    )
    if differ:
        yield Effect(
            "Changes",
            f"{counted(len(differ), 'object')} will be written: {', '.join(differ)}",
            tuple(differ),
        )
    unwanted = sorted(
        f"{resource.kind}/{name}"
        for resource, name in surplus_objects(desired.cluster, wanted, live)
    )
    if unwanted:
        text = f"{counted(len(unwanted), 'object')} will be deleted: {', '.join(unwanted)}"
        yield Effect("Removes", text, tuple(unwanted))
    yield from _draining(cluster, live)


def _draining(cluster: Cluster, live: Live) -> Iterator[Effect]:
    """Yield the removal of the broker groups above spec.groups."""
    surplus = groupremoval.surplus_groups(cluster, live)
    for group in reversed(surplus):
        text = f"group {group} accepts no more messages, and is removed when it retains none; the highest group is removed first"
        yield Effect("Removes", text, (group,))
    if surplus and cluster.spec.storage.delete_claim == "Delete":
        text = f"the volumes of {', '.join(surplus)} are deleted with them (storage.deleteClaim)"
        yield Effect("DeletesData", text, tuple(surplus))


def _removed_data(said: Forecast) -> Iterator[Effect]:
    """Yield the deletion of the volumes of removed replicas; the other replicas have every message."""
    claims = [
        names.claim_name(step.group, step.node)
        for step in said.steps
        if isinstance(step, StopReplica)
    ]
    if claims:
        text = f"the volumes of the replicas that leave are deleted: {', '.join(claims)}"
        yield Effect("DeletesData", text, tuple(f"PersistentVolumeClaim/{name}" for name in claims))


def _kept_pods(said: Forecast, live: Live) -> Iterator[Effect]:
    """Yield the restarts that wait because a volume would be deleted together with its pod."""
    steps = {(each.group, each.node) for each in said.steps if isinstance(each, RestartReplica)}
    for group, node in sorted(steps):
        if text := lost_volume_text(live, group, node):
            yield Effect("Waits", text, (f"{group}/{node}",))


def _carried_out(before: DesiredState | None, live: Live) -> Cluster | None:
    """Return the Cluster with its accepted spec, without edits that wait; None if the accepted spec is unknown."""
    if before is None:
        return None
    sets = live.stateful_sets()
    if not sets:
        return before.desired.cluster
    accepted = accepted_spec(sets)
    return before.desired.cluster.model_copy(update={"spec": accepted}) if accepted else None


def _held(item: Item, cluster: Cluster, before: Item | None) -> list[Effect]:
    """Return why the forecast effects wait: a pause, or a Secret that the operator has reported as missing."""
    if item.is_paused:
        text = f"nothing happens while the annotation {names.ANNOTATION_PAUSE} is set"
        return [Effect("Waits", text, (cluster.metadata.name,))]
    if cluster.spec.update.mode == "Paused":
        text = "nothing restarts while spec.update.mode is Paused"
        return [Effect("Waits", text, (cluster.metadata.name,))]
    if before is not None and isinstance(before.manifest, Cluster) and missing_secret(before):
        secrets = [
            (each.tls, each.security, each.listeners)
            for each in (before.manifest.spec, cluster.spec)
        ]
        if secrets[0] == secrets[1]:
            text = f"nothing restarts meanwhile: {missing_secret(before)}"
            return [Effect("Waits", text, (cluster.metadata.name,))]
    return []
