"""
The desired Kubernetes objects of a Cluster, in the order in which they are applied. Pure.

``kube/objects`` builds the objects. This module selects those that a Cluster gets now, including the settings files and
forms that its previous pods still need. ``backend`` applies them.
"""

from collections.abc import Iterable

from orderlymq_operator.kube.objects import canary, console, names
from orderlymq_operator.kube.objects.cluster import (
    Environment,
    RaftGroupFacts,
    account_objects,
    budget_objects,
    group_set,
    listener_objects,
    name_server_set,
    route_objects,
    service_objects,
    settings_objects,
    with_live_settings,
)
from orderlymq_operator.kube.objects.listeners import ADDRESSES_FILE
from orderlymq_operator.kube.objects.network import policy_objects
from orderlymq_operator.kube.objects.ownership import owners
from orderlymq_operator.kube.objects.pods import form_of
from orderlymq_operator.kube.observe.cluster import Live
from orderlymq_operator.kube.resources import (
    ACCESSORY,
    CONFIG_MAPS,
    NETWORK_POLICIES,
    SERVICES,
    STATEFUL_SETS,
    TLS_ROUTES,
    Json,
    Resource,
    resource_of,
)
from orderlymq_operator.resources.kinds import Cluster, Desired


def is_needed(made: Json) -> bool:
    """Return whether brokers or name servers need an object; they work without the others."""
    labels = made["metadata"]["labels"]
    return (
        labels["app.kubernetes.io/component"] in (names.BROKER, names.NAME_SERVER)
        and names.LABEL_LISTENER not in labels
        and made["kind"] not in {resource.kind for resource in ACCESSORY}
    )


def early_objects(cluster: Cluster, environment: Environment) -> list[Json]:
    """Return the objects that are applied first, because the Services provide the addresses of the broker groups."""
    return [
        *account_objects(cluster),
        *service_objects(cluster, environment),
        *listener_objects(cluster),
    ]


def late_objects(cluster: Cluster, environment: Environment, live: Live) -> list[Json]:
    """Return the objects that contain the addresses; the planner starts broker groups that have no StatefulSet yet."""
    return [
        *settings_in_use(cluster, environment, live),
        *budget_objects(cluster),
        name_server_set(cluster, environment),
        *accessory_objects(cluster, environment),
        *(
            group_set(cluster, group, environment)
            for group in environment.groups
            if live.find(STATEFUL_SETS, group) is not None
        ),
    ]


def accessory_objects(cluster: Cluster, environment: Environment) -> list[Json]:
    """Return the optional objects that the spec enables: policies, routes, console and canary."""
    image, pull_policy = environment.image, environment.pull_policy
    every, draining = environment.every_address, environment.draining
    return [
        *policy_objects(cluster, environment.operator_namespace),
        *route_objects(cluster, environment),
        *console.console_objects(cluster, image=image, pull_policy=pull_policy, every=every),
        *canary.canary_objects(cluster, image=image, pull_policy=pull_policy, draining=draining),
    ]


def surplus_objects(
    cluster: Cluster, wanted: Iterable[Json], live: Live
) -> list[tuple[Resource, str]]:
    """Return the optional objects that the Cluster no longer needs: those of listeners, policies, console, canary."""
    places = [(each, console.console_name(cluster)) for each in console.KINDS]
    places += [(each, canary.canary_name(cluster)) for each in canary.KINDS]
    for (kind, name), made in live.made.items():
        if kind in (SERVICES.kind, TLS_ROUTES.kind) and names.LABEL_LISTENER in (
            made["metadata"].get("labels") or {}
        ):
            places.append((resource_of(made), name))
        if kind == NETWORK_POLICIES.kind and not cluster.spec.network.policies:
            places.append((NETWORK_POLICIES, name))
    kept = {(made["kind"], made["metadata"]["name"]) for made in wanted}
    return [
        (resource, name)
        for resource, name in dict.fromkeys(places)
        if (resource.kind, name) not in kept
        and (found := live.find(resource, name)) is not None
        and cluster.metadata.uid in owners(found, cluster.kind)
    ]


def settings_in_use(cluster: Cluster, environment: Environment, live: Live) -> list[Json]:
    """Return the ConfigMaps with the settings files, including files that previous pods still read.

    If a container restarts in such a pod, the pod has not mounted the files that the newest settings name. Settings
    that running brokers reload have their desired values in every file.
    """
    found = settings_objects(cluster, environment)
    for made in found:
        name = made["metadata"]["name"]
        present = live.find(CONFIG_MAPS, name)
        stateful_set = live.find(STATEFUL_SETS, name)
        if present is None or stateful_set is None:
            continue
        is_group = name in environment.groups
        pods = live.group_pods(name) if is_group else live.name_server_pods()
        notes = [stateful_set["spec"]["template"]["metadata"].get("annotations") or {}]
        notes += [pod.annotations for pod in pods.values()]
        former = {each.get(names.ANNOTATION_SETTINGS, "") for each in notes}
        former -= {form_of(file) for file in made["data"] if file != ADDRESSES_FILE}
        kept = {
            file: with_live_settings(cluster, text) if is_group else text
            for file, text in (present.get("data") or {}).items()
            if file != ADDRESSES_FILE and form_of(file) in former
        }
        if any(ADDRESSES_FILE in text for text in kept.values()):
            # A name server does not start if the file that its settings name is missing.
            kept[ADDRESSES_FILE] = present["data"].get(ADDRESSES_FILE, "{}")
        made["data"] = {**kept, **made["data"]}
    return found


def forms_of(desired: Desired, live: Live, groups: tuple[str, ...]) -> dict[str, RaftGroupFacts]:
    """Return the form of every raft group: from its StatefulSet, or that of a new one.

    If a raft group's volumes outlived its StatefulSet, it starts only with the replicas that have a volume, and the
    planner adds the others. Otherwise, empty replicas could elect each other as an empty raft group. It may have been
    closed for removal.
    """
    found = {}
    for group in groups:
        present = live.find(STATEFUL_SETS, group)
        service = live.find(SERVICES, group)
        address = service["spec"]["clusterIP"] if service else None
        if present is None:
            volumes = live.claims_of(group)
            count = max(volumes, default=desired.cluster.spec.replicas_per_group)
            size = str(desired.cluster.spec.storage.size)
            found[group] = RaftGroupFacts(count, count, size, address, closed=bool(volumes))
            continue
        notes = present["metadata"].get("annotations") or {}
        count = int(notes.get(names.ANNOTATION_REPLICAS) or present["spec"].get("replicas", 1))
        first = int(notes.get(names.ANNOTATION_FIRST) or count)
        kept = notes.get(names.ANNOTATION_ADDRESS) or address
        closed = notes.get(names.ANNOTATION_CLOSED) == "true"
        found[group] = RaftGroupFacts(
            count, first, claim_size(present), address or kept, closed=closed
        )
    return found


def claim_size(stateful_set: Json) -> str:
    """Return the size in a StatefulSet's claim template, which is immutable."""
    claims = stateful_set["spec"]["volumeClaimTemplates"]
    return str(claims[0]["spec"]["resources"]["requests"]["storage"])
