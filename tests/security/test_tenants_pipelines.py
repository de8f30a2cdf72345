"""A Pipeline gives its author no more rights than a driver needs; every attack here worked once."""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orderlymq_operator.kube.metrics import OperatorMetrics
from orderlymq_operator.kube.objects.cluster import name_server_set
from orderlymq_operator.kube.objects.names import ANNOTATION_PAUSE
from orderlymq_operator.kube.observe.inventory import Inventory
from orderlymq_operator.kube.reconcile.pipeline import PipelineReconciler
from orderlymq_operator.kube.resources import (
    BACKUPS,
    CLUSTERS,
    JOBS,
    PIPELINES,
    SCHEDULED_BACKUPS,
    STATEFUL_SETS,
    Json,
    Resource,
)
from orderlymq_operator.plan.permissions import DriverPolicy, forbidden
from tests.operator.examples import pipeline
from tests.operator.kube.objectserver import ObjectServer
from tests.operator.kube.samples import cluster, custom, environment

SHOP = "shop"
STRANGER = "evil"
OWN = DriverPolicy("spark:1")
STREAM: dict[str, Any] = {
    "type": "archive",
    "source": {"topic": "orders"},
    "checkpoint": "checkpoint",
    "path": "archive",
    "trigger": "30s",
}


def secret(name: str, variable: str = "ORDERS_SECRET_KEY") -> dict[str, Any]:
    return {"env": [{"name": variable, "secret": {"name": name, "key": "secretKey"}}]}


def setting(name: str, value: str = "x") -> dict[str, Any]:
    return {"spark": {"settings": {name: value}}}


# Secrets that a Cluster of the namespace names.
NAMED = ("guarded-tls", "outside-tls", "authority", "token", "people", "browsers", "former-store")


def store(secret: str) -> dict[str, Any]:
    """Return a place for backups in a bucket, with credentials from a Secret."""
    return {"objectStore": {"url": "s3://backups", "credentialsSecretRef": {"name": secret}}}


GUARDED: dict[str, Any] = {
    "tls": {"mode": "Enforcing", "secretName": "guarded-tls"},
    "listeners": [
        {"name": "out", "type": "NodePort", "port": 9000, "tls": {"secretName": "outside-tls"}}
    ],
    "security": {
        "internalIssuer": {"secretName": "authority"},
        "pagesToken": {"secretName": "token"},
    },
    "console": {
        "accounts": {"secretName": "people"},
        "ingress": {"host": "mq.example", "tlsSecretName": "browsers"},
    },
    "imagePullSecrets": ["registry"],
    "bootstrap": {"fromBackup": {"destination": store("former-store")}},
}


# Each spec of an attack, and words that its refusal must contain.
def iceberg(properties: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that make an archive a table of a catalogue."""
    catalog = {"name": "lake", "properties": properties}
    return {"path": None, "format": "iceberg", "table": "shop.orders", "catalog": catalog}


ATTACKS: list[tuple[dict[str, Any], str]] = [
    ({"image": "registry.example.com/evil:1"}, "registry.example.com/evil:1"),
    ({"image": "spark:1-evil"}, "spark:1-evil"),
    ({"storage": {"claimName": "data-demo-0-0"}}, "data-demo-0-0"),
    ({"storage": {"claimName": "data-demo-nameserver-1"}}, "data-demo-nameserver-1"),
    ({"storage": {"claimName": "data-not-there-yet-12-4"}}, "data-not-there-yet-12-4"),
    (secret("demo-operator"), "demo-operator"),
    (secret("demo-identity"), "demo-identity"),
    (secret("demo-ca"), "demo-ca"),
    *((secret(name), name) for name in NAMED),
    ({"imagePullSecrets": ["demo-operator"]}, "demo-operator"),
    (secret("mine", "LD_PRELOAD"), "LD_PRELOAD"),
    (secret("mine", "JAVA_TOOL_OPTIONS"), "JAVA_TOOL_OPTIONS"),
    (secret("mine", "PYTHONPATH"), "PYTHONPATH"),
    (secret("mine", "SPARK_CONF_DIR"), "SPARK_CONF_DIR"),
    (secret("mine", "AWS_PROFILE"), "AWS_PROFILE"),
    (secret("mine", "SSLKEYLOGFILE"), "SSLKEYLOGFILE"),
    (secret("mine", "PYTHON_KEYRING_BACKEND"), "PYTHON_KEYRING_BACKEND"),
    (secret("mine", "PYSPARK_GATEWAY_SECRET"), "PYSPARK_GATEWAY_SECRET"),
    (secret("mine", "SPARK_JAVA_OPT_KEY"), "SPARK_JAVA_OPT_KEY"),
    (secret("mine", "_SPARK_AUTH_SECRET"), "_SPARK_AUTH_SECRET"),
    (secret("mine", "PYICEBERG_CATALOG__KEY__PY_IO_IMPL"), "PYICEBERG_CATALOG__KEY__PY_IO_IMPL"),
    (
        iceberg({"py-catalog-impl": "evil.Catalog"}),
        "py-catalog-impl",
    ),
    ({"spark": {"master": "k8s://https://kubernetes.default.svc"}}, "k8s://"),
    ({"spark": {"master": "spark://evil:7077"}}, "spark://evil:7077"),
    *(
        ({**backend, **setting(name)}, name)
        for backend in ({}, {"backend": "kubernetes"}, {"backend": "sparkApplication"})
        for name in (
            "spark.kubernetes.authenticate.driver.serviceAccountName",
            "spark.kubernetes.authenticate.executor.serviceAccountName",
            "spark.kubernetes.authenticate.submission.oauthToken",
            "spark.kubernetes.namespace",
            "spark.kubernetes.container.image",
            "spark.kubernetes.executor.container.image",
            "spark.kubernetes.driver.podTemplateFile",
            "spark.kubernetes.executor.podTemplateFile",
            "spark.kubernetes.executor.volumes.hostPath.root.mount.path",
            "spark.kubernetes.executor.volumes.hostPath.root.options.path",
            "spark.kubernetes.executor.volumes.persistentVolumeClaim.x.options.claimName",
            "spark.kubernetes.executor.secrets.demo-operator",
            "spark.kubernetes.driver.secretKeyRef.KEY",
            "spark.kubernetes.executor.secretKeyRef.KEY",
            "spark.kubernetes.executor.label.orderlymq.io/cluster",
            "spark.kubernetes.executor.annotation.x",
            "spark.kubernetes.hadoop.configMapName",
            "spark.kubernetes.kerberos.krb5.path",
            "spark.kubernetes.executor.scheduler.name",
            "spark.kubernetes.driver.master",
            "spark.kubernetes.allocation.pods.allocator",
            "spark.master",
            "spark.submit.deployMode",
            "spark.jars",
            "spark.jars.packages",
            "spark.files",
            "spark.plugins",
            "spark.extraListeners",
            "spark.driver.extraJavaOptions",
            "spark.executor.extraJavaOptions",
            "spark.driver.extraClassPath",
            "spark.executorEnv.LD_PRELOAD",
            "spark.pyspark.python",
            "spark.sql.extensions",
            "spark.sql.hive.metastore.jars",
            "spark.sql.parquet.output.committer.class",
            "spark.sql.streaming.streamingQueryListeners",
            "spark.sql.streaming.stateStore.providerClass",
            "spark.hadoop.fs.file.impl",
            "spark.hadoop.net.topology.script.file.name",
        )
    ),
]


@pytest.mark.parametrize(("spec", "named"), ATTACKS)
def test_what_would_widen_rights_is_refused_by_name(spec: dict[str, Any], named: str) -> None:
    """The refusal names the value and says what to do."""
    found = forbidden(pipeline(**spec), OWN, [cluster(**GUARDED)])

    assert found is not None
    assert (found.status, found.reason) == ("False", "FieldNotAllowed")
    assert named in found.message
    assert len(found.message) <= 1024


# The settings that the pages about pipelines recommend for object stores and catalogues.
PAGE = Path(__file__).parents[2] / "docs" / "howto" / "pipelines.md"
STORES = re.findall(r"`((?:AWS|GOOGLE|AZURE|PYICEBERG)_[A-Z_]+)`", PAGE.read_text())


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"image": "spark:1"},
        {"storage": {"claimName": "orders-archive-pipeline"}},
        {"storage": {"claimName": "data-lake"}},
        secret("shop-app"),
        secret("shop-app", "ORDERLYMQ_SECRET_KEY"),
        *(secret("shop-app", name) for name in STORES),
        {"imagePullSecrets": ["registry"]},
        iceberg({"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}),
        {"spark": {"master": "local[2]"}},
        {"backend": "kubernetes", **setting("spark.kubernetes.executor.request.cores", "500m")},
        setting("spark.sql.shuffle.partitions", "8"),
        setting("spark.executor.memory", "3g"),
    ],
)
def test_what_a_driver_needs_is_allowed(spec: dict[str, Any]) -> None:
    """Allowed are its own claim, Secrets of applications, resources and pace."""
    assert forbidden(pipeline(**spec), OWN, [cluster(**GUARDED)]) is None


def test_the_operator_s_owner_may_allow_more() -> None:
    """The owner lists whole names, or prefixes that end with a star; all other checks stay."""
    more = DriverPolicy("spark:1", ("registry.example.com/data/*",), ("spark.hadoop.*",))
    asked = {"image": "registry.example.com/data/spark:7", **setting("spark.hadoop.x")}

    assert forbidden(pipeline(**asked), more, []) is None
    assert forbidden(pipeline(image="anything"), DriverPolicy("spark:1", None), []) is None
    assert forbidden(pipeline(**secret("demo-ca")), DriverPolicy("spark:1", None, ("*",)), [])


@dataclass
class World:
    """An API server with the Cluster `demo` in one namespace, and Pipelines in two."""

    server: ObjectServer
    inventory: Inventory
    drivers: PipelineReconciler

    def allow(self, *namespaces: str) -> None:
        spec = {"allowedNamespaces": list(namespaces)}
        self.server.put(CLUSTERS, custom("Cluster", "demo", spec=spec))
        self.inventory.invalidate()

    def break_spec(self) -> None:
        """Edit the Cluster so that its spec is invalid."""
        spec = {"allowedNamespaces": ["*"], "groups": "many"}
        self.server.put(CLUSTERS, custom("Cluster", "demo", spec=spec))
        self.inventory.invalidate()

    def carry_out(self, uid: str = "uid-shop-demo", **spec: Any) -> None:
        """Record that the operator has noted the spec of a Cluster with this UID."""
        made = cluster(**spec)
        servers = name_server_set(made, environment(made))
        servers["metadata"]["ownerReferences"][0]["uid"] = uid
        self.server.put(STATEFUL_SETS, servers)

    def put(self, namespace: str, **spec: Any) -> None:
        made = custom("Pipeline", "copy", namespace, spec={**STREAM, **spec})
        self.server.put(PIPELINES, made)
        self.inventory.invalidate()

    async def settle(self, namespace: str) -> Json:
        """Let the operator work until it has nothing left to do; return the condition Ready."""
        for _ in range(5):
            await self.drivers.reconcile((namespace, "copy"))
        found = self.server.find(PIPELINES, namespace, "copy")
        assert found is not None
        (ready,) = found["status"]["conditions"]
        made: Json = ready
        return made

    def made(self, namespace: str) -> list[str]:
        """Return the objects that were made for the Pipeline."""
        return [
            path
            for path in self.server.objects
            if f"/namespaces/{namespace}/" in path and "orderlymq.io" not in path
        ]


@pytest.mark.parametrize("kind", [BACKUPS, SCHEDULED_BACKUPS])
async def test_what_opens_the_backups_of_a_cluster_is_not_read(
    world: "World", kind: Resource
) -> None:
    """A reader of a backup gets all messages and the secrets of all accounts."""
    spec: dict[str, Any] = {"clusterRef": {"name": "demo"}, "destination": store("vault")}
    if kind is SCHEDULED_BACKUPS:
        spec["schedule"] = "0 2 * * *"
    world.server.put(kind, custom(kind.kind, "nightly", SHOP, spec=spec))
    world.put(SHOP, **secret("vault", "AWS_SECRET_ACCESS_KEY"))

    ready = await world.settle(SHOP)

    assert (ready["reason"], "'vault'" in ready["message"]) == ("FieldNotAllowed", True)
    assert world.made(SHOP) == []


@pytest.fixture
async def world() -> AsyncIterator[World]:
    server = ObjectServer()
    async with server.serving() as api:
        inventory = Inventory(api, ())
        drivers = PipelineReconciler(
            api, inventory, OperatorMetrics(), policy=OWN, pull_policy="Never"
        )
        made = World(server, inventory, drivers)
        made.allow()
        yield made
        await drivers.close()


async def test_a_stranger_s_pipeline_gets_no_object(world: World) -> None:
    """The condition tells the stranger whom to ask; a Pipeline of a listed namespace gets its driver."""
    world.put(STRANGER)

    ready = await world.settle(STRANGER)

    assert ready["reason"] == "NamespaceNotAllowed"
    assert "spec.allowedNamespaces" in ready["message"]
    assert world.made(STRANGER) == []
    world.allow(STRANGER)
    assert (await world.settle(STRANGER))["reason"] == "Progressing"
    assert STATEFUL_SETS.path(STRANGER, "copy-pipeline") in world.made(STRANGER)


async def test_a_driver_ends_when_its_namespace_is_no_longer_allowed(world: World) -> None:
    """The claim is kept, because it holds the checkpoint."""
    world.allow(STRANGER)
    world.put(STRANGER)
    await world.settle(STRANGER)

    world.allow("somebody-else")
    ready = await world.settle(STRANGER)

    assert ready["reason"] == "NamespaceNotAllowed"
    assert world.server.find(STATEFUL_SETS, STRANGER, "copy-pipeline") is None
    assert any("persistentvolumeclaims" in path for path in world.made(STRANGER))


async def test_a_spec_that_cannot_be_used_changes_nobody_s_rights(world: World) -> None:
    """The last valid spec stays in effect: its namespaces stay allowed, others stay refused, and its Secrets stay guarded."""
    world.carry_out(allowedNamespaces=[STRANGER], tls=GUARDED["tls"])
    world.allow(STRANGER)
    world.put(STRANGER)
    world.put("third")
    world.put(SHOP, **secret("guarded-tls"))
    await world.settle(STRANGER)

    world.break_spec()
    found = {name: await world.settle(name) for name in (STRANGER, "third", SHOP)}

    reasons = {name: ready["reason"] for name, ready in found.items()}
    assert reasons == {
        STRANGER: "Progressing",
        "third": "NamespaceNotAllowed",
        SHOP: "FieldNotAllowed",
    }
    assert STATEFUL_SETS.path(STRANGER, "copy-pipeline") in world.made(STRANGER)
    assert "does not allow namespace 'third'" in found["third"]["message"]


@pytest.mark.parametrize(
    ("edit", "notes"),
    [({"replicasPerGroup": 1}, {}), ({}, {ANNOTATION_PAUSE: "true"})],
    ids=["unconfirmed", "paused"],
)
async def test_an_edit_that_waits_gives_nobody_a_right(
    world: World, edit: dict[str, Any], notes: dict[str, str]
) -> None:
    """A new permission counts when the edit is carried out; a newly guarded Secret counts immediately."""
    world.carry_out(tls=GUARDED["tls"])
    tls = {"mode": "Enforcing", "secretName": "next-tls"}
    spec = {"allowedNamespaces": [STRANGER], "tls": tls, **edit}
    made = custom("Cluster", "demo", spec=spec, annotations=notes)
    world.server.put(CLUSTERS, made)
    world.put(STRANGER)
    stranger = await world.settle(STRANGER)
    guarded = []
    for name in ("guarded-tls", "next-tls"):
        world.put(SHOP, **secret(name))
        guarded.append((await world.settle(SHOP))["reason"])

    assert stranger["reason"] == "NamespaceNotAllowed"
    assert world.made(STRANGER) == []
    assert guarded == ["FieldNotAllowed"] * 2
    world.carry_out(**spec)
    assert (await world.settle(STRANGER))["reason"] == "Progressing"


@pytest.mark.parametrize("former", [False, True])
async def test_a_spec_that_never_could_be_used_allows_nobody_and_says_so(
    world: World, former: bool
) -> None:
    """The permission of a former Cluster with this name does not count."""
    if former:
        world.carry_out("another", allowedNamespaces=[STRANGER])
    world.break_spec()
    world.put(STRANGER)
    ready = await world.settle(STRANGER)

    assert ready["reason"] == "NamespaceNotAllowed"
    assert "correct the Cluster: spec.groups" in ready["message"]
    assert world.made(STRANGER) == []


async def test_a_forbidden_field_makes_no_object_and_ends_what_runs(world: World) -> None:
    """A forbidden field is refused in a Pipeline of the Cluster's own namespace, too."""
    world.put(SHOP, trigger="availableNow")
    await world.settle(SHOP)
    assert any("/jobs/" in path for path in world.made(SHOP))

    world.put(SHOP, trigger="availableNow", image="evil:1")
    ready = await world.settle(SHOP)

    assert ready["reason"] == "FieldNotAllowed"
    assert not any(path.startswith(JOBS.path(SHOP)) for path in world.made(SHOP))
