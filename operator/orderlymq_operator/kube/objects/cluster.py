"""
A Cluster as Kubernetes objects: StatefulSets, Services, budgets, settings, rights.

Pure. Rules: names and selectors never change. Fields that Kubernetes makes immutable (claims of a StatefulSet) keep
their first value. Only the planner replaces pods (OnDelete), so a changed template alone restarts nothing. `pods` makes
the pod templates, `drift` finds objects that differ.
"""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from pydantic import ValidationError

from orderlymq_operator.kube.certificates.record import Issued
from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.backups.restore import Restore, restoring_pod
from orderlymq_operator.kube.objects.listeners import (
    ADDRESSES_FILE,
    Addresses,
    annotations,
    route_spec,
    service_spec,
    target_name,
    targets,
)
from orderlymq_operator.kube.objects.ownership import owned
from orderlymq_operator.kube.objects.pods import (
    IDENTITY_KEY,
    NAME_SERVER_FILE,
    NODES_MAX,
    SECRET_KEY,
    broker_pod,
    broker_settings,
    every_address,
    name_server_pod,
    name_server_settings,
    settings_file,
    settings_form,
)
from orderlymq_operator.kube.objects.rights import account_with_rights
from orderlymq_operator.kube.resources import (
    BUDGETS,
    CONFIG_MAPS,
    SECRETS,
    SERVICES,
    STATEFUL_SETS,
    Json,
    Resource,
)
from orderlymq_operator.plan.settings import (
    broker_options,
    live_options,
    revision_of,
    with_live_options,
)
from orderlymq_operator.resources.cluster.cluster import ClusterSpec
from orderlymq_operator.resources.cluster.listeners import Listener, roll_facts
from orderlymq_operator.resources.cluster.rollout import LIVE_SETTINGS
from orderlymq_operator.resources.kinds import Cluster

# The key-value configuration of a name server is a file of kilobytes.
_NAME_SERVER_CLAIM: Final = "128Mi"


@dataclass(frozen=True, slots=True)
class RaftGroupFacts:
    """Facts of a raft group that do not follow from its Cluster alone.

    Attributes:
        replicas: replicas that were started and not removed.
        first: how many of them formed the raft group at its beginning.
        address: ClusterIP of its Service; None before the Service exists.
        claim: size of each volume when the StatefulSet was made.
        certificates: the certificates of its next pods; None without TLS between them.
        closed: it accepts no messages until the operator opens it again; also set if that was so when its StatefulSet
            was deleted.
    """

    replicas: int
    first: int
    claim: str
    address: str | None = None
    certificates: Issued | None = None
    closed: bool = False


@dataclass(frozen=True, slots=True)
class Environment:
    """Additions of the operator to a Cluster.

    Attributes:
        image: image of brokers and name servers.
        revision: revision of the settings and image of new broker pods.
        name_server_revision: revision of the settings and image of new name server pods.
        name_server_claim: size of the name servers' volumes when the StatefulSet was made.
        operator_namespace: namespace of the operator, which must reach the pods.
        accepted: the accepted spec, as the user wrote it; None means that of the Cluster.
        addresses: known addresses of each broker group, for clients of each additional listener.
        restoring: the backup from which the replicas are being restored; None if brokers run.
        restored: id of the backup from which the replicas were restored; empty for none.
        routes: the version of Gateway API's TLSRoute that the API server serves, if a listener needs it.
        draining: broker groups that will be removed.
    """

    image: str
    pull_policy: str
    revision: str
    name_server_revision: str = ""
    groups: Mapping[str, RaftGroupFacts] = field(default_factory=dict)
    name_server_claim: str = _NAME_SERVER_CLAIM
    operator_namespace: str = "default"
    accepted: ClusterSpec | None = None
    addresses: Addresses = field(default_factory=dict)
    restoring: Restore | None = None
    restored: str = ""
    routes: Resource | None = None
    draining: frozenset[str] = frozenset()

    @property
    def every_address(self) -> str:
        """The address at which pods listen, derived from the known addresses of raft groups."""
        known = (form.address for form in self.groups.values() if form.address is not None)
        return every_address(next(known, ""))


def accepted_text(spec: ClusterSpec) -> str:
    """Return the annotation with the accepted spec: only the fields that differ from the defaults."""
    said = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return json.dumps(said, sort_keys=True)


def accepted_spec(stateful_sets: Iterable[Json]) -> ClusterSpec | None:
    """Return the accepted spec from the first of these StatefulSets with a valid annotation; None if none has one.

    Fields that only another version of the operator knows are ignored.
    """
    for made in stateful_sets:
        notes = made["metadata"].get("annotations") or {}
        with suppress(ValidationError):
            return ClusterSpec.model_validate_json(
                notes.get(names.ANNOTATION_ACCEPTED, ""), extra="ignore"
            )
    return None


def kube_revision(cluster: Cluster, image: str) -> str:
    """Return a text that changes when broker pods must be replaced because *cluster* changed.

    It depends only on the fields of the manifest that differ from the defaults, never on the pods that this version
    builds. Another version of the operator, with more settings or other pods, finds the same revision and restarts
    nothing.
    """
    said = _said(cluster, "nameServers.resources", *LIVE_SETTINGS)
    # The default of the retention size depends on the size of the disk.
    said["retentionSize"] = broker_options(cluster)["storage"]["retention_size"]
    return revision_of({**said, "image": image})


def name_server_revision(cluster: Cluster, image: str) -> str:
    """Return the same text for name servers, which most settings do not concern."""
    said = _said(
        cluster,
        *(
            "nameServers.replicas",
            "retention",
            "flushDiskType",
            "addressQuotas",
            "resources",
            "lock",
        ),
    )
    config = cluster.spec.config
    said["config"] = [config.log_level, config.log_format]
    return revision_of({**said, "image": image})


# Fields that do not change a pod.
_MEANINGLESS: Final = (
    *("groups", "replicasPerGroup", "local", "update", "scaleDown", "image", "imagePullPolicy"),
    *("imagePullSecrets", "allowedNamespaces", "network", "console", "canary", "bootstrap"),
    *("storage.size", "storage.deleteClaim", "storage.className", "storage.autoGrow"),
    "lock.takeover",
    *("security.profile", "security.internalTls", "security.internalIssuer"),
)


def _said(cluster: Cluster, *meaningless: str) -> dict[str, Any]:
    """Return the fields of the manifest that differ from the defaults, except those that are *meaningless* to a pod.

    A field that a later version adds counts until it is listed here: a needless restart is better than a missed one.
    """
    said = cluster.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    for path in (*_MEANINGLESS, *meaningless):
        part, _, name = path.rpartition(".")
        (said.get(part, {}) if part else said).pop(name, None)
    if cluster.spec.listeners:
        said["listeners"] = roll_facts(cluster.spec.listeners)
    return {key: value for key, value in said.items() if value not in ({}, None)}


def account_objects(cluster: Cluster) -> list[Json]:
    """Return the objects with which brokers may label their own pods: ServiceAccount, Role, RoleBinding."""
    name = names.broker_account(cluster)
    pods = [
        names.pod_name(group, node)
        for group in cluster.group_names
        for node in range(1, NODES_MAX + 1)
    ]
    rule = {
        "apiGroups": [""],
        "resources": ["pods"],
        "resourceNames": pods,
        "verbs": ["get", "patch"],
    }
    make = partial(_object, cluster, name=name, component=names.BROKER)
    return account_with_rights(make, name, cluster.metadata.namespace, [rule])


def service_objects(cluster: Cluster, environment: Environment) -> list[Json]:
    """Return the Services: one headless Service for the name servers, two for each broker group."""
    found = [
        _service(
            cluster,
            names.name_server_set(cluster),
            {"remoting": names.NAME_SERVER_PORT, "http": names.HTTP_PORT},
            names.selector(cluster, names.NAME_SERVER),
            headless=True,
        )
    ]
    for group in cluster.group_names:
        chosen = names.selector(cluster, names.BROKER, group)
        ports = {"remoting": names.BROKER_PORT, "remoting-old": names.OLD_CLIENT_PORT}
        inner = {"raft": names.RAFT_PORT, "http": names.HTTP_PORT}
        # Includes the leader's HTTP pages, because only the leader knows the backlog of consumer groups.
        clients = _service(
            cluster,
            group,
            ports | {"http": names.HTTP_PORT},
            chosen | {names.LABEL_ROLE: names.LEADER},
            group=group,
        )
        form = environment.groups.get(group)
        if form is not None and form.address is not None:
            clients["spec"]["clusterIP"] = form.address
        replicas = _service(
            cluster,
            names.replica_service(group),
            inner | ports,
            chosen,
            group=group,
            headless=True,
        )
        # Replicas must find each other before any of them is ready.
        replicas["spec"]["publishNotReadyAddresses"] = True
        found += [clients, replicas]
    return found


def listener_objects(cluster: Cluster) -> list[Json]:
    """Return the Services of the additional listeners."""
    return [
        _of_listener(cluster, listener, group, SERVICES)
        for listener in cluster.spec.listeners
        for group in targets(cluster)
    ]


def route_objects(cluster: Cluster, environment: Environment) -> list[Json]:
    """Return the TLSRoutes of the additional listeners in the served version; empty if no version is served."""
    if environment.routes is None:
        return []
    return [
        _of_listener(cluster, listener, group, environment.routes)
        for listener in cluster.spec.listeners
        if listener.type == "TLSRoute"
        for group in targets(cluster)
    ]


def _of_listener(
    cluster: Cluster, listener: Listener, group: str | None, resource: Resource
) -> Json:
    """Return a listener's Service for a broker group or for the name servers (None), or the route to that Service."""
    is_service = resource is SERVICES
    component = names.NAME_SERVER if group is None else names.BROKER
    name = names.listener_service(target_name(cluster, group), listener.name)
    spec = (service_spec if is_service else route_spec)(cluster, listener, group)
    made = _object(cluster, resource, name, component, group, spec=spec)
    made["metadata"]["labels"][names.LABEL_LISTENER] = listener.name
    if not is_service or listener.type != "TLSRoute":  # the route has them
        made["metadata"]["annotations"] |= annotations(cluster, listener, group)
    return made


def settings_objects(cluster: Cluster, environment: Environment) -> list[Json]:
    """Return the ConfigMaps with the settings files: one for the name servers, one for each broker group."""
    form = settings_form(environment.name_server_revision)
    file = settings_file(NAME_SERVER_FILE, form)
    data = {file: _text(name_server_settings(cluster, environment.every_address))}
    if cluster.spec.listeners:
        data[ADDRESSES_FILE] = _text(environment.addresses)
    name = names.name_server_set(cluster)
    found = [_object(cluster, CONFIG_MAPS, name, names.NAME_SERVER, data=data)]
    for group, shape in sorted(environment.groups.items()):
        if shape.address is None:
            continue
        form = settings_form(environment.revision, shape.certificates)
        data = {
            settings_file(names.pod_name(group, node), form): _text(
                broker_settings(
                    cluster,
                    group,
                    node,
                    address=shape.address,
                    first=shape.first,
                    replicas=shape.replicas,
                    certificates=shape.certificates,
                )
            )
            for node in range(1, shape.replicas + 1)
        }
        found.append(_object(cluster, CONFIG_MAPS, group, names.BROKER, group, data=data))
    return found


def with_live_settings(cluster: Cluster, text: str) -> str:
    """Update the settings that running brokers reload in a broker's previous settings file; keep an invalid file."""
    try:
        before = json.loads(text)
    except ValueError:
        return text
    after = with_live_options(before, live_options(cluster)) if isinstance(before, dict) else before
    return text if after == before else _text(after)


def budget_objects(cluster: Cluster) -> list[Json]:
    """Return the disruption budgets: one pod at a time of each broker group, and of the name servers."""
    places: list[tuple[str, str, str | None]] = [
        (names.name_server_set(cluster), names.NAME_SERVER, None)
    ]
    places += [(group, names.BROKER, group) for group in cluster.group_names]
    return [
        _object(
            cluster,
            BUDGETS,
            name,
            component,
            group,
            spec={
                "maxUnavailable": 1,
                "selector": {"matchLabels": names.selector(cluster, component, group)},
            },
        )
        for name, component, group in places
    ]


def name_server_set(cluster: Cluster, environment: Environment) -> Json:
    """Return the StatefulSet of the name servers."""
    made = _stateful_set(
        cluster,
        names.name_server_set(cluster),
        names.NAME_SERVER,
        None,
        service=names.name_server_set(cluster),
        replicas=cluster.spec.name_servers.replicas,
        claim=environment.name_server_claim,
    )
    made["metadata"]["annotations"] |= _notes(cluster, environment)
    if environment.restored:
        made["metadata"]["annotations"] |= {names.ANNOTATION_RESTORED: environment.restored}
    made["spec"]["template"] = name_server_pod(
        cluster,
        image=environment.image,
        pull_policy=environment.pull_policy,
        revision=environment.name_server_revision,
    )
    return made


def group_set(cluster: Cluster, group: str, environment: Environment) -> Json:
    """Return the StatefulSet of a raft group."""
    form = environment.groups[group]
    made = _stateful_set(
        cluster,
        group,
        names.BROKER,
        group,
        service=names.replica_service(group),
        replicas=form.replicas,
        claim=form.claim,
    )
    made["metadata"]["annotations"] |= {
        **_notes(cluster, environment),
        names.ANNOTATION_FIRST: str(form.first),
        names.ANNOTATION_REPLICAS: str(form.replicas),
        names.ANNOTATION_ADDRESS: form.address or "",
        names.ANNOTATION_REVISION: environment.revision,
        names.ANNOTATION_CERTIFICATES: form.certificates.text() if form.certificates else "",
        **({names.ANNOTATION_CLOSED: "true"} if form.closed else {}),
    }
    made["spec"]["template"] = broker_pod(
        cluster,
        group,
        image=environment.image,
        pull_policy=environment.pull_policy,
        revision=environment.revision,
        certificates=form.certificates,
    )
    if environment.restoring is not None:
        made["spec"]["template"] = restoring_pod(made["spec"]["template"], environment.restoring)
    return made


def _notes(cluster: Cluster, environment: Environment) -> dict[str, str]:
    """Return the annotations that every StatefulSet has, so that they survive the loss of one StatefulSet."""
    return {
        names.ANNOTATION_ACCEPTED: accepted_text(environment.accepted or cluster.spec),
        names.ANNOTATION_IMAGE: environment.image,
    }


def operator_secret(cluster: Cluster, text: str) -> Json:
    """Return the Secret with which the operator signs its requests to brokers."""
    return _secret(cluster, names.operator_secret(cluster), SECRET_KEY, text)


def identity_secret(cluster: Cluster, text: str) -> Json:
    """Return the Secret by which replicas and name servers of a Cluster identify each other."""
    return _secret(cluster, names.identity_secret(cluster), IDENTITY_KEY, text)


def _secret(cluster: Cluster, name: str, key: str, text: str) -> Json:
    texts = {key: text}
    return _object(cluster, SECRETS, name, names.BROKER, type="Opaque", stringData=texts)


def _stateful_set(
    cluster: Cluster,
    name: str,
    component: str,
    group: str | None,
    *,
    service: str,
    replicas: int,
    claim: str,
) -> Json:
    delete_claim = cluster.spec.storage.delete_claim
    spec = {
        "replicas": replicas,
        "serviceName": service,
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "OnDelete"},
        "selector": {"matchLabels": names.selector(cluster, component, group)},
        # The planner removes a replica and then deletes its claim. A user who lowers the number by hand must not lose a
        # volume.
        "persistentVolumeClaimRetentionPolicy": {
            "whenDeleted": delete_claim,
            "whenScaled": "Retain",
        },
        "volumeClaimTemplates": [_claim(cluster, component, group, claim)],
    }
    return _object(cluster, STATEFUL_SETS, name, component, group, spec=spec)


def _claim(cluster: Cluster, component: str, group: str | None, size: str) -> Json:
    spec: Json = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": size}},
    }
    if cluster.spec.storage.class_name is not None:
        spec["storageClassName"] = cluster.spec.storage.class_name
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "labels": names.selector(cluster, component, group)},
        "spec": spec,
    }


def _service(
    cluster: Cluster,
    name: str,
    ports: Mapping[str, int],
    chosen: Mapping[str, str],
    *,
    group: str | None = None,
    headless: bool = False,
) -> Json:
    component = names.NAME_SERVER if group is None else names.BROKER
    spec: Json = {
        "type": "ClusterIP",
        "selector": dict(chosen),
        "ports": [
            {"name": name, "port": port, "targetPort": port, "protocol": "TCP"}
            for name, port in ports.items()
        ],
    }
    if headless:
        spec["clusterIP"] = "None"
    return _object(cluster, SERVICES, name, component, group, spec=spec)


def _object(
    cluster: Cluster,
    resource: Resource,
    name: str,
    component: str,
    group: str | None = None,
    **content: Any,
) -> Json:
    labels = names.labels(cluster, component, group)
    return owned("Cluster", cluster.metadata, resource, name, labels, **content)


def _text(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, indent=1, sort_keys=True)
