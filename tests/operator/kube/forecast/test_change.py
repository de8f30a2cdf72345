"""The forecast from the API server's data, compared with an operator that then carries the change out."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from orderlymq_operator.kube.errors import ApiError
from orderlymq_operator.kube.forecast.reader import forecast_with
from orderlymq_operator.kube.observe.inventory import LAST_APPLIED
from orderlymq_operator.kube.reconcile.backend import Defaults
from orderlymq_operator.kube.resources import (
    CLAIMS,
    CLUSTERS,
    CONFIG_MAPS,
    CONSUMER_GROUPS,
    NODES,
    PIPELINES,
    PODS,
    SERVICES,
    STATEFUL_SETS,
    STORAGE_CLASSES,
    TOPICS,
    USERS,
)
from orderlymq_operator.plan.forecast.effects import Forecast
from orderlymq_operator.resources.manifests.reader import parse
from tests.operator.kube.apiserver import serving_api
from tests.operator.kube.reconcile.test_listeners import node
from tests.operator.kube.samples import IMAGE, NAMESPACE, custom
from tests.operator.kube.smallcluster import KEY, SmallCluster, small_cluster

_SPEC: dict[str, Any] = {
    "replicasPerGroup": 1,
    "nameServers": {"replicas": 1},
    "security": {"internalTls": "Disabled"},
}


@pytest.fixture
async def small(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SmallCluster]:
    async with small_cluster(monkeypatch.setattr) as found:
        expandable = {"metadata": {"name": "standard"}, "allowVolumeExpansion": True}
        found.server.put(STORAGE_CLASSES, {"kind": "StorageClass", **expandable})
        for _ in range(4):
            await found.reconciler.reconcile(KEY)
        found.server.writes()
        yield found


def _cluster(**spec: Any) -> str:
    meta = {"name": "demo", "namespace": NAMESPACE}
    made = {"apiVersion": "orderlymq.io/v1alpha1", "kind": "Cluster", "metadata": meta}
    return yaml.safe_dump({**made, "spec": {**_SPEC, **spec}})


async def _forecast(small: SmallCluster, text: str) -> Forecast:
    async with small.server.serving() as api:
        return await forecast_with(api, parse(text, "new.yaml"), NAMESPACE)


async def test_files_with_pipelines_alone_read_their_namespace_alone(small: SmallCluster) -> None:
    """Law: a plan for files with Pipelines only reads their namespace only, for users with rights there."""
    path = next((Path(__file__).parents[4] / "examples" / "pipelines").glob("*.yaml"))
    small.server.asked.clear()

    said = await _forecast(small, path.read_text())

    assert [each.subject.kind for each in said.resources] == ["Pipeline"]
    read = {asked for _, asked, *_ in small.server.asked if asked != CLUSTERS.root}
    assert read == {PIPELINES.path(NAMESPACE), CLUSTERS.path(NAMESPACE)}


async def test_a_plan_says_that_the_only_replica_is_not_restarted_while_its_volume_would_go(
    small: SmallCluster,
) -> None:
    """Law: the plan, like the operator, does not restart the only replica while its volume is being deleted."""
    edit = _cluster(config={"logLevel": "DEBUG"})
    before = await _forecast(small, edit)
    claim = small.server.find(CLAIMS, NAMESPACE, "data-demo-0-0") or {}
    meta = {**claim["metadata"], "deletionTimestamp": "2026-01-02T00:00:00Z"}
    small.server.put(CLAIMS, {**claim, "metadata": meta})

    after = await _forecast(small, edit)

    assert (before.targets("Waits"), after.targets("Waits")) == ((), ("demo-0/1",))


async def test_a_plan_where_nothing_is_defined_says_so() -> None:
    """Law: without the resource definitions the plan is an error, because nothing could be applied."""
    async with serving_api() as api:
        with pytest.raises(ApiError, match="no definition of Cluster"):
            await forecast_with(api, parse(_cluster(), "new.yaml"), NAMESPACE)


def _said(said: Forecast) -> set[str]:
    """Return the names of objects that the forecast says may be written."""
    found = {target for effect in said.effects for target in effect.targets}
    pods = {f"Pod/{each.replace('demo-0/1', 'demo-0-0')}" for each in said.targets("Restarts")}
    return found | {each.replace("nameserver/", "demo-nameserver-") for each in pods}


def _written(writes: list[tuple[str, ...]]) -> set[str]:
    """Return the names of written objects, without statuses and events."""
    kinds = {
        "pods": "Pod",
        "services": "Service",
        "configmaps": "ConfigMap",
        "deployments": "Deployment",
        "statefulsets": "StatefulSet",
        "networkpolicies": "NetworkPolicy",
        "poddisruptionbudgets": "PodDisruptionBudget",
        "persistentvolumeclaims": "PersistentVolumeClaim",
        "roles": "Role",
        "rolebindings": "RoleBinding",
        "serviceaccounts": "ServiceAccount",
        "tlsroutes": "TLSRoute",
    }
    found = set()
    for _, path, *_rest in writes:
        if path.endswith(("/status", "/events")):
            continue
        plural, name = path.removesuffix("/eviction").split("/")[-2:]
        found.add(f"{kinds[plural]}/{name}")
    return found


async def _carry_out(small: SmallCluster, **spec: Any) -> set[str]:
    small.change(**spec)
    for _ in range(4):
        await small.reconciler.reconcile(KEY)
    return _written(small.server.writes())


_EDITS: list[dict[str, Any]] = [
    {},
    {"lock": {"leaseSeconds": 90}},
    {"lock": {"takeover": "LeaseExpiry"}},
    {"storage": {"size": "30Gi"}, "retention": {"size": "16Gi"}},
    {"storage": {"deleteClaim": "Delete"}},
    {"config": {"logLevel": "DEBUG"}},
    {"image": "orderlymq:2"},
    {"allowedNamespaces": ["team"]},
    {"nameServers": {"replicas": 2}},
    {"nameServers": {"replicas": 1, "resources": {"limits": {"memory": "512Mi"}}}},
    {"network": {"policies": False}},
    {"update": {"mode": "Paused"}, "config": {"logLevel": "DEBUG"}},
    {"groups": 2},
    {"canary": {"enabled": True}},
    {"placement": {"priorityClassName": "high"}},
]


@pytest.mark.long
@pytest.mark.parametrize("edit", _EDITS, ids=str)
async def test_an_operator_writes_nothing_that_the_forecast_did_not_say(
    small: SmallCluster, edit: dict[str, Any]
) -> None:
    """Law: each object, eviction and volume change of the operator was in the forecast."""
    said = await _forecast(small, _cluster(**edit))

    written = await _carry_out(small, **edit)

    added = set(said.targets("Adds"))
    unsaid = {each for each in written - _said(said) if not any(group in each for group in added)}
    assert not unsaid, said.resources
    restarted = {each for each in written if each.startswith("Pod/")}
    wanted = {each for each in _said(said) if each.startswith("Pod/demo-")}
    paused = edit.get("update") == {"mode": "Paused"}
    assert paused or wanted == restarted


async def test_a_cluster_at_rest_has_no_forecast(small: SmallCluster) -> None:
    """Law: an equal manifest, also with defaults written out, has no effects."""
    for text in (_cluster(), _cluster(flushDiskType="SYNC_FLUSH")):
        said = await _forecast(small, text)
        assert not said.effects, said.resources


@pytest.mark.parametrize("image", [IMAGE, "orderlymq:2"])
async def test_a_cluster_that_follows_its_operator_restarts_for_another_image_alone(
    monkeypatch: pytest.MonkeyPatch, image: str
) -> None:
    """Law: with onOperatorUpgrade Follow, another operator image restarts pods only if they do not have it yet."""
    defaults, follows = Defaults(image, "IfNotPresent"), {"update": {"onOperatorUpgrade": "Adopt"}}
    async with small_cluster(monkeypatch.setattr, defaults=defaults, image=IMAGE) as small:
        for _ in range(4):
            await small.reconciler.reconcile(KEY)
        small.server.writes()
        await _carry_out(small, image=None)
        said = await _forecast(small, _cluster(**follows))
        assert bool(said.targets("Restarts")) == (image != IMAGE)

        await _carry_out(small, image=None, **follows)
        assert not (await _forecast(small, _cluster(**follows))).targets("Changes")


@pytest.mark.parametrize("kind", ["LoadBalancer", "NodePort"])
async def test_the_addresses_of_a_listener_are_no_change(small: SmallCluster, kind: str) -> None:
    """Law: known addresses of a listener are no change."""
    listener = {"name": "outside", "type": kind, "port": 9095}
    small.change(listeners=[listener])
    small.server.put(NODES, node("worker", "192.0.2.9"))
    for name in ("demo-0-outside", "demo-nameserver-outside"):
        await small.reconciler.reconcile(KEY)
        service = small.server.find(SERVICES, NAMESPACE, name)
        assert service is not None
        ports = [{**each, "nodePort": 30_000} for each in service["spec"]["ports"]]
        balancer = {"loadBalancer": {"ingress": [{"ip": "192.0.2.7"}]}}
        spec = {**service["spec"], "ports": ports}
        small.server.put(SERVICES, {**service, "spec": spec, "status": balancer})
    for _ in range(4):
        await small.reconciler.reconcile(KEY)

    said = await _forecast(small, _cluster(listeners=[listener]))

    config = small.server.find(CONFIG_MAPS, NAMESPACE, "demo-nameserver")
    assert config is not None
    assert "192.0.2" in config["data"]["addresses.json"]
    assert not said.effects, said.resources


async def test_what_goes_with_a_listener_is_said(small: SmallCluster) -> None:
    """Law: objects that an edit removes are in the plan."""
    listener = {"name": "outside", "type": "LoadBalancer", "port": 9095}
    small.change(listeners=[listener])
    for _ in range(4):
        await small.reconciler.reconcile(KEY)
    small.server.writes()
    small.server.asked.clear()

    said = await _forecast(small, _cluster())
    written = await _carry_out(small, listeners=[])

    gone = {"Service/demo-0-outside", "Service/demo-nameserver-outside"}
    assert gone <= written
    assert written <= _said(said)
    assert gone == set(said.targets("Removes"))


async def test_a_canary_that_comes_changes_or_goes_is_said(small: SmallCluster) -> None:
    """Law: a canary's pod, topics and consumer group are in the plan when it comes, changes or goes."""
    topic, group = "orderlymq_canary_demo-0", "orderlymq_canary"
    pod, policy = "Deployment/demo-canary", "NetworkPolicy/demo-canary"
    on, slow = {"enabled": True}, {"enabled": True, "interval": "5s"}

    comes = await _forecast(small, _cluster(canary=on))
    await _carry_out(small, canary=on)
    rests = await _forecast(small, _cluster(canary=on))
    changes = await _forecast(small, _cluster(canary=slow))
    goes = await _forecast(small, _cluster())

    assert comes.targets("Creates") == ("demo-0",)
    assert {pod, policy} <= set(comes.targets("Changes"))
    assert [each.subject.name for each in comes.resources if each.effects] == ["demo", topic]
    assert not rests.effects, rests.resources
    assert {effect.kind for effect in changes.effects} == {"Changes"}
    assert (pod in changes.targets("Changes"), policy in changes.targets("Changes")) == (
        True,
        False,
    )
    assert set(goes.targets("Removes")) == {pod, policy}
    lost = {
        each.subject.name
        for each in goes.resources
        for effect in each.effects
        if effect.kind == "DeletesData"
    }
    assert lost == {topic, group}


async def test_settings_that_go_after_a_pause_are_said(small: SmallCluster) -> None:
    """Law: a settings file that is deleted when its pods have restarted is in the plan."""
    group, pod = (
        small.server.find(kind, NAMESPACE, name)
        for kind, name in ((STATEFUL_SETS, "demo-0"), (PODS, "demo-0-0"))
    )
    assert group is not None
    assert pod is not None
    notes = group["spec"]["template"]["metadata"]["annotations"]
    small.server.put(PODS, {**pod, "metadata": {**pod["metadata"], "annotations": notes}})
    changed = {"config": {"tailCacheSize": "8Mi"}}
    await _carry_out(small, update={"mode": "Paused"}, **changed)
    config = small.server.find(CONFIG_MAPS, NAMESPACE, "demo-0")
    assert config is not None
    assert len(config["data"]) == 2

    said = await _forecast(small, _cluster(**changed))

    assert "ConfigMap/demo-0" in said.targets("Changes")


@pytest.mark.parametrize("old", [None, "another-key"])
async def test_what_is_said_once_for_all_is_refused_later(
    small: SmallCluster, old: str | None
) -> None:
    """Law: fields that may be set only once are refused by the plan as by the API server, even with an equal value."""
    reference = {"clusterRef": {"name": "demo"}}
    spec = reference if old is None else {**reference, "accessKey": old}
    notes = {LAST_APPLIED: json.dumps({"spec": spec})}
    small.server.put(USERS, custom("User", "account", spec=spec, annotations=notes))
    made = {
        "apiVersion": "orderlymq.io/v1alpha1",
        "kind": "User",
        "metadata": {"name": "account", "namespace": NAMESPACE},
    }

    said = await _forecast(small, yaml.safe_dump({**made, "spec": reference}))
    other = await _forecast(
        small, yaml.safe_dump({**made, "spec": {**reference, "accessKey": "account"}})
    )

    fields = [(f"{NAMESPACE}/account", "spec.accessKey")]
    assert [(each.name, each.field) for each in said.refusals] == ([] if old is None else fields)
    assert [(each.name, each.field) for each in other.refusals] == fields


async def test_what_somebody_else_has_set_stays(small: SmallCluster) -> None:
    """Law: as with `kubectl apply`, a field that no manifest named is not removed by one that does not name it."""
    small.change()
    found = small.server.find(CLUSTERS, *KEY)
    assert found is not None
    patched = {**found["spec"], "config": {"logLevel": "DEBUG"}}
    small.server.put(CLUSTERS, {**found, "spec": patched})
    for _ in range(4):
        await small.reconciler.reconcile(KEY)

    said = await _forecast(small, _cluster())
    added = await _forecast(small, _cluster(config={"tailCacheSize": "128Mi"}))

    assert not said.effects, said.resources
    assert not any("logLevel" in each.text for each in added.effects)


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000])
async def test_a_former_manifest_that_cannot_be_read_is_named(
    small: SmallCluster, text: str
) -> None:
    """Law: an unreadable last-applied annotation is an error that names the object."""
    found = small.server.find(CLUSTERS, *KEY)
    assert found is not None
    meta = {**found["metadata"], "annotations": {LAST_APPLIED: text}}
    small.server.put(CLUSTERS, {**found, "metadata": meta})

    with pytest.raises(ApiError, match="of demo is not a JSON object; remove it"):
        await _forecast(small, _cluster())


async def test_a_backup_to_begin_with_is_refused_later(small: SmallCluster) -> None:
    """Law: bootstrap.fromBackup set later is refused by the plan, as by the schema."""
    place = {"pvc": {"claimName": "backups", "path": "demo"}}
    said = await _forecast(small, _cluster(bootstrap={"fromBackup": {"destination": place}}))

    assert [each.field for each in said.refusals] == ["spec.bootstrap"]


async def test_what_the_schema_refuses_stays_and_the_rest_is_forecast(small: SmallCluster) -> None:
    """Law: an object that the schema refuses stays as it is, and the others are forecast."""
    topic = {"clusterRef": {"name": "demo"}, "queues": 4, "type": "Ordered"}
    layout = [{"group": "demo-0", "queues": 4}]
    small.server.put(TOPICS, custom("Topic", "bills", spec=topic, status={"queueLayout": layout}))
    bad = yaml.safe_dump(
        {
            "apiVersion": "orderlymq.io/v1alpha1",
            "kind": "Topic",
            "metadata": {"name": "bills", "namespace": NAMESPACE},
            "spec": {**topic, "queues": 6},
        }
    )

    said = await _forecast(small, f"{_cluster(lock={'leaseSeconds': 90})}---\n{bad}")

    assert [(each.name, each.field) for each in said.refusals] == [
        (f"{NAMESPACE}/bills", "spec.queues")
    ]
    assert said.targets("Restarts") == ("demo-0/1",)


async def test_a_second_step_of_tls_waits_for_the_first(small: SmallCluster) -> None:
    """Law: the second step of a change of TLS waits for the first; the pods show which modes they have."""
    tls = {"secretName": "pair"}
    small.change(tls={**tls, "mode": "Permissive"})

    said = await _forecast(small, _cluster(tls={**tls, "mode": "Enforcing"}))

    (waits,) = [effect.text for effect in said.effects if effect.kind == "Waits"]
    assert waits == (
        "tls.mode Enforcing waits until every pod runs with Permissive: pod demo-0-0 has Disabled; "
        "pods restart once for each of the two modes"
    )


async def test_a_topic_of_no_cluster_waits(small: SmallCluster) -> None:
    """Law: a topic without its Cluster waits and is no error."""
    text = """
apiVersion: orderlymq.io/v1alpha1
kind: Topic
metadata: {name: early}
spec: {clusterRef: {name: nobody}}
"""

    said = await _forecast(small, text)

    assert [effect.kind for effect in said.effects] == ["Waits"]


async def test_the_forecast_only_reads(small: SmallCluster) -> None:
    """Law: the forecast only reads, so that a user with read rights may plan."""
    small.server.asked.clear()

    await _forecast(small, _cluster(groups=2))

    assert {method for method, *_ in small.server.asked} == {"GET"}
    assert small.server.find(PODS, *(NAMESPACE, "demo-0-0")) is not None
    assert small.server.find(CLAIMS, *(NAMESPACE, "data-demo-0-0")) is not None


@pytest.mark.parametrize("served", ["v1", ""])
async def test_the_plan_names_routes_as_they_can_be_made(small: SmallCluster, served: str) -> None:
    """Law: if Gateway API is missing, the plan says that the listener's routes cannot be made."""
    small.server.routes = served
    listener = {
        "name": "sni",
        "type": "TLSRoute",
        "port": 9096,
        "tls": {"secretName": "sni-tls"},
        "advertisedHost": "{service}.mq.example.com",
        "gateway": {"name": "edge"},
    }
    said = await _forecast(small, _cluster(listeners=[listener]))
    waits = [each.text for each in said.effects if "Gateway API's definition" in each.text]

    assert ("TLSRoute/demo-0-sni" in _said(said)) == bool(served)
    assert len(waits) == (0 if served else 1)
    assert "Service/demo-0-sni" in _said(said)


async def test_the_plan_of_a_confirmation_says_what_it_confirms(small: SmallCluster) -> None:
    """Law: the plan of a confirmation compares with what is carried out, not with an earlier edit that waits."""
    small.change(retention={"time": "1h"})
    for _ in range(4):
        await small.reconciler.reconcile(KEY)
    waits = small.condition("Confirmed")["message"]
    token = waits.partition("confirm=")[2].partition(";")[0]
    confirmed = yaml.safe_load(_cluster(retention={"time": "1h"}))
    confirmed["metadata"]["annotations"] = {"orderlymq.io/confirm": token}

    said = await _forecast(small, yaml.safe_dump(confirmed))
    third = await _forecast(small, _cluster(retention={"time": "48h"}))

    assert not said.targets("NeedsConfirmation")
    for found, hours in ((said, "1h"), (third, "48h")):
        texts = {
            each.kind: each.text for each in found.effects if "spec.retention" in each.targets[0]
        }
        assert texts.keys() == {"Changes", "DeletesData"}
        assert all(hours in text and "72h" in text for text in texts.values())


async def test_an_object_never_moves_to_another_cluster(small: SmallCluster) -> None:
    """Law: the plan refuses to move an object to another Cluster, as the API server does; other objects are forecast."""
    small.server.put(CLUSTERS, custom("Cluster", "other", spec=_SPEC))
    small.server.put(TOPICS, custom("Topic", "log", spec={"type": "Normal"}))
    topic = {"apiVersion": "orderlymq.io/v1alpha1", "kind": "Topic"}
    spec = {"type": "Normal", "clusterRef": {"name": "other"}}
    moved, new = (
        yaml.safe_dump({**topic, "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec})
        for name in ("log", "new")
    )

    said = await _forecast(small, f"{moved}---\n{new}")

    refused = [(each.name, each.field) for each in said.refusals]
    assert refused == [(f"{NAMESPACE}/log", "spec.clusterRef")]
    assert not [each for each in said.resources if each.subject.name == f"{NAMESPACE}/log"]
    assert [each for each in said.resources if each.subject.name == f"{NAMESPACE}/new"]


@pytest.mark.parametrize("allowed", ["other", "*"])
async def test_objects_of_other_namespaces_stand_in_the_plan(
    small: SmallCluster, allowed: str
) -> None:
    """Law: objects of other namespaces that the Cluster allows are in the plan."""
    small.change(allowedNamespaces=[allowed])
    group = {"clusterRef": {"name": "demo", "namespace": NAMESPACE}}
    small.server.put(CONSUMER_GROUPS, custom("ConsumerGroup", "billing", "other", spec=group))

    said = await _forecast(small, _cluster(allowedNamespaces=[allowed], groups=2))
    small.server.refused["/apis/orderlymq.io/v1alpha1/topics"] = (403, "not all namespaces")
    few = await _forecast(small, _cluster(allowedNamespaces=[allowed], groups=2))

    (billing,) = [each for each in said.resources if each.subject.name == "other/billing"]
    assert any("demo-1" in each.targets for each in billing.effects)
    assert few.targets("Adds")


async def test_an_account_without_a_secret_is_not_said_to_be_created(small: SmallCluster) -> None:
    """Law: an account that waits for its Secret is not said to be created until the User changes."""
    spec = {"clusterRef": {"name": "demo"}, "secretFrom": {"secret": {"name": "lost"}}}
    report = {
        "type": "Ready",
        "status": "False",
        "reason": "SecretMissing",
        "message": "it is lost",
    }
    status = {"conditions": [{**report, "observedGeneration": 1}]}
    small.server.put(USERS, custom("User", "account", spec=spec, status=status))

    def account(**more: Any) -> str:
        meta = {"name": "account", "namespace": NAMESPACE}
        made = {"apiVersion": "orderlymq.io/v1alpha1", "kind": "User", "metadata": meta}
        return yaml.safe_dump({**made, "spec": {**spec, **more}})

    said = await _forecast(small, account())
    changed = await _forecast(small, account(admin=True))

    assert [(each.kind, each.text) for each in said.effects] == [
        ("Waits", "SecretMissing: it is lost")
    ]
    assert [each.kind for each in changed.effects] == ["Creates"]


async def test_restarts_that_wait_for_a_secret_are_said_to_wait(small: SmallCluster) -> None:
    """Law: restarts that wait for a missing Secret are said to wait, until the manifest names another one."""
    lacks = {"tls": {"mode": "Permissive", "secretName": "lost"}}
    small.change(**lacks)
    for _ in range(4):
        await small.reconciler.reconcile(KEY)

    said = await _forecast(small, _cluster(**lacks))
    edited = await _forecast(small, _cluster(**lacks, image="orderlymq:2"))
    cured = await _forecast(small, _cluster())

    for each in (said, edited):
        (waits,) = [effect.text for effect in each.effects if effect.kind == "Waits"]
        assert "nothing restarts meanwhile: there is no Secret 'lost'" in waits
    assert not cured.targets("Waits")


async def test_a_topic_that_is_in_conflict_refuses_no_change_of_another_one(
    small: SmallCluster,
) -> None:
    """Law: an existing conflict of another topic does not refuse a change."""
    spec = {"clusterRef": {"name": "demo"}, "type": "Ordered", "queues": 1}
    status = {"topicName": "orders", "queueLayout": [{"group": "demo-0", "queues": 8}]}
    small.server.put(TOPICS, custom("Topic", "orders", spec=spec, status=status))

    def topic(name: str) -> str:
        meta = {"name": name, "namespace": NAMESPACE}
        made = {"apiVersion": "orderlymq.io/v1alpha1", "kind": "Topic", "metadata": meta}
        return yaml.safe_dump({**made, "spec": spec})

    other, same = await _forecast(small, topic("other")), await _forecast(small, topic("orders"))

    waits = [each.text for each in other.effects if each.kind == "Waits"]
    assert not other.refusals
    assert other.targets("Creates") == ("demo-0",)
    assert "keeps its 8 queues" in waits[0]
    assert [(each.kind, each.name) for each in same.refusals] == [("Topic", "shop/orders")]


async def test_a_change_is_refused_where_it_brings_another_one_into_conflict(
    small: SmallCluster,
) -> None:
    """Law: a change that brings another topic into conflict is refused, for example a broker group with a topic's name."""
    spec = {"clusterRef": {"name": "demo"}}
    small.server.put(TOPICS, custom("Topic", "demo-1", spec=spec))

    said = await _forecast(small, _cluster(groups=2))

    assert [(each.kind, each.name) for each in said.refusals] == [("Topic", "shop/demo-1")]
    assert not said.targets("Waits")
