import json
from collections import Counter
from typing import Any

import pytest
from pydantic import ValidationError

from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.cluster import (
    RaftGroupFacts,
    account_objects,
    budget_objects,
    group_set,
    kube_revision,
    name_server_revision,
    name_server_set,
    service_objects,
    settings_objects,
)
from orderlymq_operator.kube.observe.cluster import Live
from orderlymq_operator.kube.reconcile.desiredobjects import early_objects, late_objects
from orderlymq_operator.kube.resources import Json
from orderlymq_operator.resources.cluster.listeners import Listener
from orderlymq_operator.resources.kinds import Cluster
from tests.operator.kube.samples import IMAGE, NAMESPACE, cluster, environment


def _everything(made: Cluster) -> list[Json]:
    form = environment(made)
    return [
        *account_objects(made),
        *service_objects(made, form),
        *settings_objects(made, form),
        *budget_objects(made),
        name_server_set(made, form),
        *(group_set(made, group, form) for group in made.group_names),
    ]


def _settings(made: Cluster, form: RaftGroupFacts, pod: str) -> dict[str, Any]:
    objects = settings_objects(made, environment(made, groups={"demo-0": form}))
    (text,) = [text for file, text in objects[1]["data"].items() if file.startswith(f"{pod}.")]
    found: dict[str, Any] = json.loads(text)
    return found


def test_everything_belongs_to_the_cluster_and_goes_with_it_without_blocking() -> None:
    """Law: every object has an owner reference that does not block, labels, and the Cluster's namespace."""
    for made in _everything(cluster(groups=2)):
        (owner,) = made["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("Cluster", f"uid-{NAMESPACE}-demo")
        assert owner["blockOwnerDeletion"] is False
        assert made["metadata"]["namespace"] == NAMESPACE
        assert made["metadata"]["labels"][names.LABEL_CLUSTER] == "demo"


def test_clients_reach_only_the_pod_that_leads() -> None:
    """Law: a broker group's Service selects the leader's pod by its label and keeps its address;
    its pages are the leader's.
    """
    made = cluster()
    _, clients, replicas = service_objects(made, environment(made))

    assert clients["metadata"]["name"] == "demo-0"
    assert clients["spec"]["selector"][names.LABEL_ROLE] == names.LEADER
    assert clients["spec"]["clusterIP"] == "10.96.0.7"
    assert [port["port"] for port in clients["spec"]["ports"]] == [10911, 10909, 13910]
    assert replicas["spec"]["publishNotReadyAddresses"] is True
    assert names.LABEL_ROLE not in replicas["spec"]["selector"]


@pytest.mark.parametrize(
    ("form", "joins"), [((3, 3), False), ((5, 3), True), ((3, 1), True), ((3, 5), False)]
)
def test_first_members_begin_as_voters_until_their_group_has_grown(
    form: tuple[int, int], joins: bool
) -> None:
    """Law: first members start as voters until their group has grown; later all replicas join,
    because a lost disk must not vote.
    """
    group = RaftGroupFacts(*form, "20Gi", "10.96.0.7")

    found = [_settings(cluster(), group, f"demo-0-{node}") for node in range(form[0])]

    assert [each["node_id"] for each in found] == list(range(1, form[0] + 1))
    assert {each["join"] for each in found} == {joins}
    everybody = {str(node) for node in range(1, max(form) + 1)}
    assert all(each["peers"].keys() == everybody for each in found)
    assert found[0]["peers"]["2"]["host"] == "demo-0-1.demo-0-replicas.shop.svc"
    assert found[0]["address"] == {"host": "10.96.0.7", "port": 10911}
    assert found[0]["pod"]["siblings"] == [f"demo-0-{node}" for node in range(1, max(form))]


def test_brokers_may_touch_their_own_pods_and_nothing_else() -> None:
    """Law: brokers may patch their own pods only; a token is mounted into brokers only."""
    made = cluster(groups=2)
    _, role, _ = account_objects(made)
    (rule,) = role["rules"]

    assert rule["verbs"] == ["get", "patch"]
    assert {"demo-0-0", "demo-1-4"} <= set(rule["resourceNames"])
    server = name_server_set(made, environment(made))["spec"]["template"]["spec"]
    assert server["automountServiceAccountToken"] is False
    assert not any(volume["name"] == "token" for volume in server["volumes"])


def test_pods_are_restricted() -> None:
    """Law: pods are non-root, without capabilities, with a read-only root file system and the default seccomp profile."""
    made = cluster()
    form = environment(made)
    for stateful_set in (
        name_server_set(made, form),
        group_set(made, "demo-0", form),
    ):
        pod = stateful_set["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_a_command_in_a_pod_finds_the_cluster() -> None:
    """Law: a command in a pod finds the Cluster by one name for all name servers, and uses its TLS."""
    tls = {"mode": "Enforcing", "secretName": "demo-tls", "clientAuth": "Required"}
    for made, addition in ((cluster(), set()), (cluster(tls=tls), {"TLS", "TLS_CA", "TLS_KEY"})):
        form = environment(made)
        for each in (name_server_set(made, form), group_set(made, "demo-0", form)):
            (container,) = each["spec"]["template"]["spec"]["containers"]
            variables = {each["name"]: each.get("value") for each in container["env"]}

            assert variables["ORDERLYMQ_NAME_SERVER"] == f"demo-nameserver.{NAMESPACE}.svc:9876"
            assert {f"ORDERLYMQ_{name}" for name in addition} <= variables.keys()
            assert ("ORDERLYMQ_TLS" in variables) == bool(addition)
            for name in {"ORDERLYMQ_TLS_CA", "ORDERLYMQ_TLS_KEY"} & variables.keys():
                folder = str(variables[name]).rpartition("/")[0]
                assert folder in {mount["mountPath"] for mount in container["volumeMounts"]}


def test_nothing_is_restarted_by_kubernetes_itself() -> None:
    """Law: StatefulSets use OnDelete, because the planner replaces pods."""
    made = cluster()
    assert group_set(made, "demo-0", environment(made))["spec"]["updateStrategy"] == {
        "type": "OnDelete"
    }


def test_a_volume_keeps_the_size_that_its_stateful_set_was_made_with() -> None:
    """Law: the StatefulSet keeps its first volume size, which Kubernetes cannot change; claims grow one by one."""
    made = cluster(storage={"size": "40Gi"})
    form = environment(made, groups={"demo-0": RaftGroupFacts(3, 3, "20Gi", "10.96.0.7")})

    (claim,) = group_set(made, "demo-0", form)["spec"]["volumeClaimTemplates"]

    assert claim["spec"]["resources"]["requests"]["storage"] == "20Gi"


@pytest.mark.parametrize(
    "spec",
    [
        {"groups": 2},
        {"replicasPerGroup": 5},
        {"scaleDown": {"policy": "Drain"}},
        {"update": {"mode": "Paused"}},
        {"storage": {"deleteClaim": "Delete"}},
        {"imagePullPolicy": "Always"},
        {"lock": {"takeover": "LeaseExpiry"}},
        {"config": {"logLevel": "INFO"}},
        {"config": {"maxMessageSize": "1Mi"}},
        {"retention": {"time": "1h"}},
        {"security": {"internalTls": "Enabled", "internalIssuer": {"secretName": "issuer"}}},
        {"podTemplate": {}},
    ],
)
def test_a_revision_stays_when_running_pods_need_not_change(spec: dict[str, Any]) -> None:
    """Law: changes that running pods do not need (groups, replicas, defaults written out) keep the revision."""
    assert kube_revision(cluster(**spec), IMAGE) == kube_revision(cluster(), IMAGE)


@pytest.mark.parametrize(
    "spec",
    [
        {"config": {"logLevel": "DEBUG"}},
        {"resources": {"limits": {"memory": "2Gi"}}},
        {"placement": {"antiAffinity": "Required"}},
        {"nameServers": {"replicas": 3}},
        {"lock": {"leaseSeconds": 40}},
        {"retention": {"size": "1Gi"}},
        {"podTemplate": {"labels": {"team": "shop"}}},
        {"podTemplate": {"securityContext": {}}},
    ],
)
def test_a_revision_changes_with_what_pods_obey(spec: dict[str, Any]) -> None:
    """Law: the revision changes with settings, resources and placement."""
    assert kube_revision(cluster(**spec), IMAGE) != kube_revision(cluster(), IMAGE)


_CHANGES: list[dict[str, Any]] = [
    {"groups": 2},
    {"replicasPerGroup": 5},
    {"nameServers": {"replicas": 3}},
    {"nameServers": {"resources": {"limits": {"memory": "1Gi"}}}},
    {"storage": {"size": "40Gi", "deleteClaim": "Delete"}},
    {"retention": {"time": "1h"}},
    {"flushDiskType": "ASYNC_FLUSH"},
    {"lock": {"leaseSeconds": 40}},
    {"tls": {"mode": "Enforcing", "secretName": "keys"}},
    {"security": {"internalTls": "Enabled"}},
    {
        "tls": {"mode": "Enforcing", "secretName": "keys"},
        "security": {"pagesToken": {"secretName": "pages"}},
    },
    {"addressQuotas": {"connections": 9}},
    {"config": {"logLevel": "DEBUG"}},
    {"config": {"logFormat": "json"}},
    {"config": {"tailCacheSize": "1Gi"}},
    {"local": {"brokerPort": 20911}},
    {"network": {"policies": False}},
    {"allowedNamespaces": ["other"]},
    {"resources": {"limits": {"memory": "2Gi"}}},
    {"placement": {"nodeSelector": {"pool": "mq"}}},
    {"podTemplate": {"env": [{"name": "TZ", "value": "UTC"}]}},
    {"podTemplate": {"nodeSelector": {"pool": "mq"}}},
    {"update": {"mode": "Paused"}},
    {"scaleDown": {"policy": "Drain"}},
]


@pytest.mark.parametrize("spec", _CHANGES)
def test_name_servers_are_replaced_when_their_pods_or_settings_change_and_only_then(
    spec: dict[str, Any],
) -> None:
    """Law: name servers are replaced only if their pods or settings files change; the revision shows exactly that."""
    plain, made = cluster(), cluster(**spec)

    def form(each: Cluster) -> tuple[Json, Json]:
        around_it = environment(each, name_server_revision="same")
        pod = name_server_set(each, around_it)["spec"]["template"]
        return pod, settings_objects(each, around_it)[0]["data"]

    differs = name_server_revision(made, IMAGE) != name_server_revision(plain, IMAGE)

    assert differs == (form(made) != form(plain))


def test_another_image_is_another_revision() -> None:
    """Law: another image is another revision, for brokers and name servers."""
    made = cluster()
    assert kube_revision(made, "orderlymq:2") != kube_revision(made, IMAGE)
    assert name_server_revision(made, "orderlymq:2") != name_server_revision(made, IMAGE)


def test_pods_say_how_their_pages_are_asked_for() -> None:
    """Law: pods of a Cluster with TLS have the annotation for https, so that Prometheus does not ask in plain."""
    plain = cluster()
    guarded = cluster(tls={"mode": "Enforcing", "secretName": "keys"})

    for made, scheme in ((plain, "http"), (guarded, "https")):
        around_it = environment(made)
        sets = [
            group_set(made, "demo-0", around_it),
            name_server_set(made, around_it),
        ]
        notes = [each["spec"]["template"]["metadata"]["annotations"] for each in sets]
        assert [each[names.ANNOTATION_SCHEME] for each in notes] == [scheme, scheme]


def test_no_two_objects_of_a_kind_have_one_name() -> None:
    """Law: with every optional part and any listener names, no two objects of a kind have the same name."""
    parts: dict[str, Any] = {
        "groups": 2,
        "console": {"enabled": True, "accounts": {"secretName": "who"}},
        "canary": {"enabled": True},
        "network": {"policies": True},
    }
    live = Live()
    for made in _everything(cluster(**parts)):
        live.put(made)
    ends = {name.rpartition("-")[2] for kind, name in live.made if kind == "Service"}
    listeners = [
        {"name": name, "type": "NodePort", "port": 9094 + port}
        for port, name in enumerate(sorted({"public", *ends}))
        if _may_be_called(name)
    ]
    whole = cluster(**parts, listeners=listeners)
    every = [
        *early_objects(whole, environment(whole)),
        *late_objects(whole, environment(whole), live),
    ]

    found = Counter((made["kind"], made["metadata"]["name"]) for made in every)

    assert len(listeners) > 1
    assert {count for _, count in found.most_common()} == {1}


def test_the_longest_names_are_no_longer_than_kubernetes_has_them() -> None:
    """Law: the longest accepted names give names and labels of at most 63 characters."""
    name = "c" * 40
    parts: dict[str, Any] = {
        "groups": 64,
        "console": {"enabled": True, "accounts": {"secretName": "who"}},
        "canary": {"enabled": True},
        "network": {"policies": True},
        "listeners": [{"name": "l" * 11, "type": "NodePort", "port": 9094}],
    }
    whole = Cluster.model_validate({"metadata": {"name": name}, "spec": parts})
    around_it = environment(whole)
    every = [*early_objects(whole, around_it), *late_objects(whole, around_it, Live())]
    every += [group_set(whole, group, around_it) for group in whole.group_names]

    # Kubernetes appends a hash of up to 11 characters to the StatefulSet's name in a label of its pods.
    longest = [len(each["metadata"]["name"]) for each in every if each["kind"] != "StatefulSet"]
    longest += [
        len(each["metadata"]["name"]) + 11 for each in every if each["kind"] == "StatefulSet"
    ]
    longest += [len(text) for each in every for text in each["metadata"]["labels"].values()]
    assert max(longest) == 63
    parts["listeners"][0]["name"] += "l"
    with pytest.raises(ValidationError, match="choose a shorter name"):
        Cluster.model_validate({"metadata": {"name": name}, "spec": parts})


def _may_be_called(listener: str) -> bool:
    try:
        Listener.model_validate({"name": listener, "type": "NodePort", "port": 9094})
    except ValidationError:
        return False
    return True
