"""A new Cluster that begins from a backup: every replica is restored before any broker runs, and only once."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from orderlymq_operator.kube.metrics import OperatorMetrics
from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.backups.restore import RESTORING
from orderlymq_operator.kube.observe.credentials import Credentials
from orderlymq_operator.kube.observe.inventory import Inventory
from orderlymq_operator.kube.reconcile.backend import Defaults
from orderlymq_operator.kube.reconcile.backoff import FIRST_S, MAX_S
from orderlymq_operator.kube.reconcile.cluster import ClusterReconciler
from orderlymq_operator.kube.reconcile.status import condition_of
from orderlymq_operator.kube.resources import (
    CLAIMS,
    CLUSTERS,
    CONFIG_MAPS,
    JOBS,
    PODS,
    STATEFUL_SETS,
    Json,
)
from tests.operator.kube.objectserver import ObjectServer
from tests.operator.kube.reconcile.backups.jobs import ID, end_job, image_of, lack_image, report
from tests.operator.kube.samples import IMAGE, NAMESPACE, custom

KEY = (NAMESPACE, "revived")
SPEC: Json = {
    "replicasPerGroup": 3,
    "nameServers": {"replicas": 1},
    "security": {"internalTls": "Disabled"},
    "storage": {"size": "1Gi"},
    "bootstrap": {"fromBackup": {"destination": {"objectStore": {"url": "s3://shop/demo"}}}},
}


@dataclass
class World:
    """An API server with the Cluster `revived`, whose pods the test starts and ends."""

    server: ObjectServer
    inventory: Inventory
    reconciler: ClusterReconciler
    # The states of init containers that a webhook has put in front of ours.
    injected: tuple[Json, ...] = ()

    async def look(self, times: int = 1) -> None:
        for _ in range(times):
            self.inventory.invalidate()
            await self.reconciler.reconcile(KEY)

    async def asked_for(self, seconds: float) -> tuple[list[float], int]:
        """Reconcile as often as the operator asks for in that time; return the pauses and the number of requests."""
        self.server.asked.clear()
        pauses: list[float] = []
        while sum(pauses) < seconds:
            pause_s = await self.reconciler.reconcile(KEY)
            assert pause_s is not None
            pauses.append(pause_s)
        return pauses, len(self.server.asked)

    def ready(self, kind: str = "Ready") -> str:
        found = self.server.find(CLUSTERS, *KEY)
        assert found is not None
        condition = condition_of(found["status"], kind)
        return "" if condition is None else str(condition["reason"])

    def message(self) -> str:
        condition = condition_of(self.cluster()["status"], "Ready")
        assert condition is not None
        return str(condition["message"])

    def cluster(self) -> Json:
        found = self.server.find(CLUSTERS, *KEY)
        assert found is not None
        return found

    def template(self) -> Json | None:
        """Return the pod template that the group's StatefulSet has now."""
        found = self.server.find(STATEFUL_SETS, NAMESPACE, "revived-0")
        return None if found is None else dict(found["spec"]["template"])

    def restores(self) -> bool:
        """Return whether a pod that is made now would restore the backup."""
        template = self.template()
        assert template is not None
        return "initContainers" in template["spec"]

    def set_uid(self) -> str:
        found = self.server.find(STATEFUL_SETS, NAMESPACE, "revived-0")
        assert found is not None
        return str(found["metadata"]["uid"])

    def start_pod(self, node: int, said: Json | str | None = None, of: str = "") -> None:
        """Let Kubernetes make a pod of the group from the StatefulSet; *said* is the last message of its restore.

        *of* is the UID of a former StatefulSet.
        """
        template = self.template()
        assert template is not None
        status: Json = {"phase": "Pending"}
        if said is not None:
            good = isinstance(said, dict) and "id" in said
            text = said if isinstance(said, str) else json.dumps(said)
            ended = {"exitCode": 0 if good else 1, "message": text}
            status["initContainerStatuses"] = [
                *self.injected,
                {"name": "restore", "state": {"terminated": ended}},
            ]
        owner = {"kind": "StatefulSet", "name": "revived-0", "uid": of or self.set_uid()}
        meta = {
            **template["metadata"],
            "name": f"revived-0-{node - 1}",
            "namespace": NAMESPACE,
            "ownerReferences": [owner],
        }
        self.server.put(
            PODS,
            {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {}, "status": status},
        )

    def kept_bytes(self) -> int:
        """Return how many bytes of messages a pod that is made now keeps, according to its settings."""
        template = self.template()
        settings = self.server.find(CONFIG_MAPS, NAMESPACE, "revived-0")
        assert template is not None
        assert settings is not None
        command = template["spec"]["initContainers"][0]["command"]
        file = command[command.index("--settings") + 1].rpartition("/")[2]
        text = settings["data"][file.replace("$(POD_NAME)", "revived-0-0")]
        return int(json.loads(text)["storage"]["retention_size"])

    def lack_image(self, node: int) -> None:
        """Let a pod of the group wait for its first image, which cannot be pulled."""
        self._wait(node, {"waiting": {"reason": "ImagePullBackOff"}})

    def refuse(self, node: int, error: str) -> None:
        """Let the restore in a pod of the group fail; the pod will try again."""
        ended = {"terminated": {"exitCode": 1, "message": json.dumps({"error": error})}}
        self._wait(node, {"waiting": {"reason": "CrashLoopBackOff"}}, ended)

    def _wait(self, node: int, waiting: Json, ended: Json | None = None) -> None:
        made = self.server.find(PODS, NAMESPACE, f"revived-0-{node - 1}")
        assert made is not None
        begins = {"waiting": {"reason": "PodInitializing"}}
        status: Json = {
            "phase": "Pending",
            "initContainerStatuses": [
                {"name": "restore", "image": "lost:1", "state": waiting, "lastState": ended}
            ],
            "containerStatuses": [{"name": "broker", "image": "lost:1", "state": begins}],
        }
        labels = {**made["metadata"]["labels"], names.LABEL_TEMPLATE: "first"}
        meta = {**made["metadata"], "labels": labels}
        self.server.put(PODS, {**made, "metadata": meta, "status": status})

    def template_is(self, revision: str) -> None:
        """Let Kubernetes have seen the newest template of the StatefulSet."""
        found = self.server.find(STATEFUL_SETS, NAMESPACE, "revived-0")
        assert found is not None
        self.server.put(STATEFUL_SETS, {**found, "status": {"updateRevision": revision}})

    def change(self, **spec: str | Json) -> None:
        """Change fields of the Cluster's spec, as a person would."""
        found = self.cluster()
        self.server.put(CLUSTERS, {**found, "spec": {**found["spec"], **spec}})

    def restoring_pods(self) -> list[str]:
        return [
            found["metadata"]["name"]
            for found in self.server.objects.values()
            if found.get("kind") == "Pod"
            and (found["metadata"].get("annotations") or {}).get(names.ANNOTATION_REVISION)
            == RESTORING
        ]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    server, metrics = ObjectServer(), OperatorMetrics()
    server.put(CLUSTERS, custom("Cluster", "revived", spec=SPEC))
    async with server.serving() as api:
        inventory = Inventory(api, (NAMESPACE,))
        reconciler = ClusterReconciler(
            api,
            inventory,
            Defaults(IMAGE, "IfNotPresent"),
            metrics,
            access=Credentials(api, lambda: 1),
            zone_of=lambda address: "",
            clock=lambda: 0.0,
        )
        yield World(server, inventory, reconciler)
        await reconciler.close()


async def restored(world: World) -> None:
    """Bring the Cluster through its restore."""
    await world.look()
    end_job(world.server, "revived-restore", report())
    await world.look(2)
    for node in (1, 2, 3):
        world.start_pod(node, report())
    await world.look(2)


async def test_no_broker_runs_before_every_replica_is_restored(world: World) -> None:
    """Law: all pods restore the same backup; brokers start when every pod has it."""
    await world.look()
    without = world.template()
    end_job(world.server, "revived-restore", report())
    await world.look(2)
    template = world.template()
    assert template is not None
    (init,) = template["spec"]["initContainers"]
    (broker,) = template["spec"]["containers"]
    for node in (1, 2):
        world.start_pod(node, report())
    world.start_pod(3)
    await world.look(2)
    waits = (world.restores(), world.ready(), world.ready("Restored"))
    world.start_pod(3, report())
    await world.look(2)

    assert without is None, "the backup is found first"
    assert ID in init["command"]
    assert "orderlymq_broker" not in broker["command"]
    assert waits == (True, "Restoring", "Restoring")
    assert not world.restores()
    assert world.restoring_pods() == []
    assert world.ready("Restored") == "RestoredFromBackup"
    told = world.cluster()["status"]["restored"]
    assert (told["backupId"], told["cluster"]) == (ID, "demo")


@pytest.mark.parametrize(
    "state", [{"terminated": {"exitCode": 0, "reason": "Completed"}}, {"running": {}}]
)
async def test_a_container_that_a_webhook_put_in_front_says_nothing(
    world: World, state: Json
) -> None:
    """Law: the result of a restore is read from the restoring container, found by its name,
    not from one that a webhook added.
    """
    world.injected = ({"name": "mesh-init", "state": state},)

    await restored(world)

    assert world.ready("Restored") == "RestoredFromBackup"


async def test_a_restore_that_takes_long_is_looked_at_ever_more_rarely(world: World) -> None:
    """Law: a restore that takes hours is looked at no more often than any waiting Cluster; it costs no list each second."""
    await world.look()
    searching = await world.asked_for(60)
    end_job(world.server, "revived-restore", report())
    await world.look(2)
    for node in (1, 2, 3):
        world.start_pod(node)
    restoring = await world.asked_for(60)

    for pauses, asked in (searching, restoring):
        assert (pauses[0], pauses[-1]) == (FIRST_S, MAX_S)
        # Lists of pods and StatefulSets, and what the restore itself reads; at first everything had been read before.
        assert asked < 5 * len(pauses) + 30
    for node in (1, 2, 3):
        world.start_pod(node, report())
    await world.look(2)
    assert world.ready("Restored") == "RestoredFromBackup"


async def test_a_replica_is_never_restored_again(world: World) -> None:
    """
    Law: a replica is never restored again, even if its volume and pod, the status, or the name servers' mark are lost.

    A second restore would make the replica forget what it has acknowledged. Each of the marks alone prevents that.
    """
    await restored(world)
    world.server.drop(JOBS, NAMESPACE, "revived-restore")
    found = []
    cluster = world.cluster()
    world.server.put(CLUSTERS, {**cluster, "status": {}})
    await world.look()
    found.append(world.restores())
    world.server.drop(STATEFUL_SETS, NAMESPACE, "revived-nameserver")
    await world.look()
    found.append(world.restores())
    world.server.put(CLUSTERS, {**world.cluster(), "status": {}})
    world.server.drop(STATEFUL_SETS, NAMESPACE, "revived-nameserver")
    await world.look()
    found.append(world.restores())
    world.server.drop(STATEFUL_SETS, NAMESPACE, "revived-0")
    await world.look(2)
    found.append(world.restores())

    assert found == [False] * 4
    assert world.server.find(JOBS, NAMESPACE, "revived-restore") is None


async def test_the_mark_is_there_before_a_broker_is(world: World) -> None:
    """Law: the mark is written before a broker runs, so an operator that ends between the two steps restores nothing
    again.
    """
    await world.look()
    end_job(world.server, "revived-restore", report())
    await world.look(2)
    for node in (1, 2, 3):
        world.start_pod(node, report())
    await world.look()
    servers = world.server.find(STATEFUL_SETS, NAMESPACE, "revived-nameserver") or {}

    assert world.restores(), "the brokers come one step later"
    assert servers["metadata"]["annotations"][names.ANNOTATION_RESTORED] == ID


async def test_what_a_former_cluster_of_the_name_left_counts_for_nothing(world: World) -> None:
    """Law: the Job and the pods of a former Cluster of the name do not count; they restored volumes that are gone."""
    former = {"kind": "Cluster", "name": "revived", "uid": "former"}
    await world.look()
    job = world.server.find(JOBS, NAMESPACE, "revived-restore")
    assert job is not None
    before = {**job["metadata"], "uid": "former-job", "ownerReferences": [former]}
    world.server.put(JOBS, {**job, "metadata": before})
    end_job(world.server, "revived-restore", report())
    await world.look(2)
    waited = (world.template(), world.ready())
    world.server.drop(JOBS, NAMESPACE, "revived-restore")  # Kubernetes deletes it with its owner.
    await world.look()
    end_job(world.server, "revived-restore", report())
    await world.look(2)
    for node in (1, 2, 3):
        world.start_pod(node, report(), of="former")
    await world.look(2)

    assert waited == (None, "Restoring")
    assert (world.restores(), world.ready()) == (True, "Restoring")


async def test_a_job_of_somebody_else_is_named(world: World) -> None:
    """Law: a Job of somebody else that has our Job's name is reported, because nothing removes it by itself."""
    meta = {"name": "revived-restore", "namespace": NAMESPACE}
    world.server.put(JOBS, {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": {}})
    await world.look()

    assert world.ready() == "RestoreFailed"
    assert "'revived-restore' exists but does not belong to this Cluster" in world.message()


async def test_a_pod_that_cannot_restore_says_why(world: World) -> None:
    """Law: a pod that cannot restore gives its reason in the condition, and no broker runs;
    a pod with another backup does not count.
    """
    await world.look()
    end_job(world.server, "revived-restore", report())
    await world.look(2)
    world.start_pod(1, report())
    world.start_pod(2, report(id="20270101T000000000Z-00000000"))
    world.start_pod(3, {"error": "the bytes of 7.sst are missing"})
    await world.look()

    assert world.ready() == "RestoreFailed"
    assert "7.sst are missing" in world.message()
    assert world.restores()


async def test_what_restores_without_its_image_is_made_again_with_another_one(
    world: World,
) -> None:
    """Law: the Job and the pods of a restore that cannot pull their image are made again with a new image;
    the condition says so.
    """
    await world.look()
    lack_image(world.server, "revived-restore")
    await world.look()
    told = [world.message()]
    world.change(image="new:1")
    await world.look(2)
    looked = image_of(world.server, "revived-restore")
    end_job(world.server, "revived-restore", report())
    await world.look(2)
    world.start_pod(1)
    world.lack_image(1)
    world.template_is("first")
    await world.look()
    told.append(world.message())
    stays = world.restoring_pods()
    world.change(image="new:2")
    await world.look()
    world.template_is("second")
    await world.look()

    assert all("lost:1" in text for text in told)
    assert looked == "new:1"
    assert (stays, world.restoring_pods()) == (["revived-0-0"], [])


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ({"error": "the store holds no backup"}, "holds no backup"),
        ("Killed", "Killed"),
        (report(groups=[["0", 7, 1, 1 << 40]]), "spec.storage.size"),
    ],
    ids=["none", "killed", "too large"],
)
async def test_a_backup_that_does_not_fit_starts_nothing(
    world: World, said: Json | str, named: str
) -> None:
    """Law: a backup that does not fit the Cluster is reported before any volume is made."""
    await world.look()
    end_job(world.server, "revived-restore", said, failed=4)
    await world.look()

    assert world.ready() == "RestoreFailed"
    assert named in world.message()
    assert world.template() is None
    assert not [each for each in world.server.objects.values() if each.get("kind") == CLAIMS.kind]


async def test_a_replica_that_refuses_is_restored_with_what_the_cluster_says_later(
    world: World,
) -> None:
    """
    Law: a replica that refuses a backup, because retention would delete messages, is restored after the Cluster's settings are corrected.

    Only the replica can judge that, because its files may have more bytes or fewer. Its pod is made again with the new settings.
    """
    world.change(storage={"size": "4Gi"})
    await world.look()
    end_job(world.server, "revived-restore", report(groups=[["0", 7, 1, 3500 << 20]]))
    await world.look(2)
    kept = [world.kept_bytes()]
    world.start_pod(1, report())
    world.start_pod(2)
    world.refuse(2, "set spec.retention.size")
    world.start_pod(3)
    world.template_is("first")
    await world.look(2)
    told, stays = (world.ready(), world.message()), world.restoring_pods()
    world.change(retention={"size": "3600Mi"})
    await world.look()
    world.template_is("second")
    await world.look()
    gone = set(stays) - set(world.restoring_pods())
    kept.append(world.kept_bytes())
    world.start_pod(2, report())
    world.start_pod(3, report())
    await world.look(2)

    assert told[0] == "RestoreFailed"
    assert "set spec.retention.size" in told[1]
    assert (len(stays), gone) == (3, {"revived-0-1"})
    assert kept == [(4 << 30) * 3 // 5, 3600 << 20]
    assert not world.restores()
