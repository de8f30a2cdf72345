"""A pod template, merged into the pods of brokers and name servers."""

from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain
from typing import Any, Final

import pytest

from orderlymq_operator.kube.certificates.record import Issued
from orderlymq_operator.kube.certificates.schedule import CertificateSet
from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.backups.restore import CONTAINER, Restore
from orderlymq_operator.kube.objects.cluster import group_set, name_server_set
from orderlymq_operator.kube.objects.drift import contains
from orderlymq_operator.kube.objects.placement import HOSTNAME
from orderlymq_operator.kube.resources import Json
from orderlymq_operator.resources.kinds import Cluster
from orderlymq_operator.resources.pod import ownership
from tests.operator.kube.objects.backups.test_restore import CLAIM
from tests.operator.kube.samples import cluster, environment

ZONE: Final = "topology.kubernetes.io/zone"
TEMPLATE: Final[dict[str, Any]] = {
    "labels": {"team": "shop"},
    "annotations": {"example.com/restarted": "1"},
    "env": [
        {"name": "TZ", "value": "UTC"},
        {"name": "EMPTY", "value": ""},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ],
    "volumes": [
        {"name": "zone-info", "configMap": {"name": "zones"}},
        {"name": "logs", "emptyDir": {}},
    ],
    "volumeMounts": [{"name": "zone-info", "mountPath": "/etc/zones", "readOnly": True}],
    "sidecars": [
        {
            "name": "logs",
            "image": "logs:1",
            "ports": [{"name": "logs", "containerPort": 2020}],
            "volumeMounts": [{"name": "logs", "mountPath": "/logs"}],
        }
    ],
    "tolerations": [{"key": "dedicated", "operator": "Exists"}],
    "nodeSelector": {"pool": "mq"},
    "priorityClassName": "messaging",
}
_DAY: Final = datetime(2026, 1, 1, tzinfo=UTC)
_ISSUED: Final = Issued("enforcing", CertificateSet(1, 1, frozenset({1}), _DAY, _DAY))
TLS: Final = {"tls": {"mode": "Enforcing", "secretName": "keys"}}
OUTSIDE: Final = {"name": "o", "type": "NodePort", "port": 9094, "tls": {"secretName": "keys"}}
PAGES: Final = {"security": {"pagesToken": {"secretName": "pages"}}}


def _pods(
    made: Cluster, certificates: Issued | None = None, restore: Restore | None = None
) -> list[Json]:
    """Return the pod templates of a group, with *restore* if it must, and of the name servers."""
    around_it = environment(made, restoring=restore)
    groups = {
        name: replace(form, certificates=certificates) for name, form in around_it.groups.items()
    }
    around_it = replace(around_it, groups=groups, revision="same")
    sets = [group_set(made, "demo-0", around_it), name_server_set(made, around_it)]
    return [each["spec"]["template"] for each in sets]


def test_a_template_adds_to_both_kinds_of_pods_and_changes_nothing_of_them() -> None:
    """Law: a template adds to both kinds of pods and changes nothing that they have."""
    for plain, pod in zip(_pods(cluster()), _pods(cluster(podTemplate=TEMPLATE)), strict=True):
        assert contains(pod, plain)
        assert pod["metadata"]["labels"]["team"] == "shop"
        assert pod["metadata"]["annotations"]["example.com/restarted"] == "1"
        own, sidecar = pod["spec"]["containers"]
        assert own["name"] in ownership.OWN_CONTAINERS
        assert own["env"][-3:] == [
            {"name": "TZ", "value": "UTC"},
            {"name": "EMPTY"},  # As the API server stores it.
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        ]
        assert own["volumeMounts"][-1] == TEMPLATE["volumeMounts"][0]
        assert pod["spec"]["volumes"][-2:] == TEMPLATE["volumes"]
        assert sidecar == {
            "name": "logs",
            "image": "logs:1",
            "ports": [{"name": "logs", "containerPort": 2020, "protocol": "TCP"}],
            "volumeMounts": [{"name": "logs", "mountPath": "/logs"}],
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
        }


def test_the_lists_of_what_the_operator_keeps_name_all_that_it_makes() -> None:
    """Law: the lists of reserved names contain every volume, port, variable and label that the operator makes."""
    wanted = cluster(**TLS, **PAGES, listeners=[OUTSIDE])
    restore = Restore(CLAIM, "20260101T000000000Z-00000000", wanted.group_names)
    pods = [*_pods(wanted, _ISSUED), *_pods(wanted, _ISSUED, restore)]
    containers = [
        container
        for each in pods
        for container in (each["spec"]["containers"][0], *each["spec"].get("initContainers", ()))
    ]
    mounts = {mount["mountPath"] for each in containers for mount in each["volumeMounts"]}
    ports = list(chain.from_iterable(each.get("ports", ()) for each in containers))

    assert {each["name"] for each in containers} == set(ownership.OWN_CONTAINERS)
    assert set(ownership.OWN_CONTAINERS) == {*names.CONTAINERS, CONTAINER}
    volumes = {volume["name"] for each in pods for volume in each["spec"]["volumes"]} | {"data"}
    assert all(map(ownership.is_own_volume, volumes))
    assert set(ownership.OWN_VOLUMES) <= volumes
    own_ports = {port["containerPort"] for port in ports if port["containerPort"] != 9094}
    assert own_ports == set(ownership.OWN_PORTS)
    assert all(ownership.is_own_port(port["name"]) for port in ports)
    for variable in {each["name"] for c in containers for each in c["env"]}:
        own = variable in ownership.OWN_VARIABLES
        assert own or variable.startswith(ownership.OWN_VARIABLE_PREFIXES), variable
    for path in mounts:
        assert any(f"{path}/".startswith(f"{own}/") for own in ownership.OWN_PATHS), path
    for pod in pods:
        keys = {*pod["metadata"]["labels"], *pod["metadata"]["annotations"]}
        assert all(
            key in ownership.OWN_LABELS or key.startswith(ownership.OWN_PREFIX) for key in keys
        )


def test_constraints_of_the_template_stand_beside_those_of_placement() -> None:
    """Law: topology constraints of the template are added to those of placement;
    one for the same domain replaces placement's.
    """
    made = cluster(
        placement={"zoneKey": ZONE, "antiAffinity": "Required"},
        podTemplate={
            "topologySpreadConstraints": [
                {"topologyKey": "rack", "maxSkew": 2},
                {"topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule", "minDomains": 3},
            ]
        },
    )

    broker, server = (pod["spec"] for pod in _pods(made))

    for pod, chosen in (
        (broker, names.selector(made, names.BROKER, "demo-0")),
        (server, names.selector(made, names.NAME_SERVER)),
    ):
        assert pod["topologySpreadConstraints"] == [
            {
                "topologyKey": ZONE,
                "maxSkew": 1,
                "whenUnsatisfiable": "DoNotSchedule",
                "minDomains": 3,
                "labelSelector": {"matchLabels": chosen},
            },
            {
                "topologyKey": "rack",
                "maxSkew": 2,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": chosen},
            },
        ]


def test_affinities_of_the_template_and_of_placement_hold_together() -> None:
    """Law: affinities of template and placement hold together; a term without a selector is about the same group."""
    other = {"matchLabels": {"app": "database"}}
    wanted = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "disk", "operator": "Exists"}]}]}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"
    made = cluster(
        placement={"antiAffinity": "Required"},
        podTemplate={
            "affinity": {
                "nodeAffinity": {required: wanted},
                "podAntiAffinity": {
                    required: [{"topologyKey": HOSTNAME, "labelSelector": other}],
                    preferred: [{"weight": 5, "podAffinityTerm": {"topologyKey": "rack"}}],
                },
            }
        },
    )
    own = {"matchLabels": names.selector(made, names.BROKER, "demo-0")}

    assert _pods(made)[0]["spec"]["affinity"] == {
        "nodeAffinity": {required: wanted},
        "podAntiAffinity": {
            required: [
                {"topologyKey": HOSTNAME, "labelSelector": own},
                {"topologyKey": HOSTNAME, "labelSelector": other},
            ],
            preferred: [
                {"weight": 5, "podAffinityTerm": {"topologyKey": "rack", "labelSelector": own}}
            ],
        },
    }


def test_single_fields_of_placement_go_on_working_beside_a_template() -> None:
    """Law: labels and tolerations of placement and template are merged; the template wins for the same key."""
    toleration = {"key": "dedicated", "operator": "Exists"}
    made = cluster(
        placement={
            "nodeSelector": {"pool": "old", "disk": "fast"},
            "tolerations": [toleration, {"key": "spot", "operator": "Exists"}],
            "priorityClassName": "low",
        },
        podTemplate=TEMPLATE,
    )

    for pod in _pods(made):
        spec = pod["spec"]
        assert spec["nodeSelector"] == {"pool": "mq", "disk": "fast"}
        assert spec["tolerations"] == [toleration, {"key": "spot", "operator": "Exists"}]
        assert spec["priorityClassName"] == "messaging"


@pytest.mark.parametrize(
    ("given", "user"),
    [
        (None, {"runAsUser": 10001, "runAsGroup": 10001, "fsGroup": 10001}),
        ({}, {}),
        ({"runAsUser": 1000720000, "runAsGroup": 0}, {"runAsUser": 1000720000, "runAsGroup": 0}),
        ({"fsGroup": 5, "supplementalGroups": [7]}, {"fsGroup": 5, "supplementalGroups": [7]}),
    ],
)
def test_the_user_of_pods_may_be_left_to_the_clusters_admission(
    given: dict[str, Any] | None, user: dict[str, Any]
) -> None:
    """Law: runAsUser may be left to admission, as OpenShift needs; root is refused everywhere."""
    template = {} if given is None else {"securityContext": given}
    policy = "OnRootMismatch" if given is None else "Always"

    for pod in _pods(cluster(podTemplate=template)):
        assert pod["spec"]["securityContext"] == {
            "runAsNonRoot": True,
            **user,
            "fsGroupChangePolicy": policy,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
