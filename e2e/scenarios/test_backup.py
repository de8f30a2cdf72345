"""A Cluster is backed up, deleted, and restored under another name in another namespace, where consumers continue."""

import http.client
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from e2e.conftest import sweep
from e2e.machine import Machine, say
from e2e.manifests import made, part, small
from e2e.orders import Orders, kept
from e2e.space import Json, Property, Space
from orderlymq.oracle.verdict import Event, judge

pytestmark = pytest.mark.timeout(1200)

READY: Final = ("cluster/demo", "topic/orders", "consumergroup/billing")
BUCKET: Final = "backups"
CLAIM: Final = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: backups}
spec:
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 1Gi}}
"""
SECRET: Final = """
apiVersion: v1
kind: Secret
metadata: {name: bucket}
stringData: {AWS_ACCESS_KEY_ID: testing1, AWS_SECRET_ACCESS_KEY: testing1}
"""
# The server that `make test-spark` installs, in a separate environment.
_PROGRAM: Final = Path(sys.prefix) / "s3" / "bin" / "moto_server"
_START_S: Final = 120.0
_DONE_S: Final = 300.0


@pytest.fixture
def bucket(machine: Machine) -> Iterator[Json]:
    """Serve S3 on this machine, at an address that pods reach; return the backups' destination."""
    assert machine.kind, "pods reach a server of this machine where the nodes are kind's"
    words = "{{range .IPAM.Config}}{{.Gateway}} {{end}}"
    found = machine.run("docker", "network", "inspect", "kind", "-f", words).split()
    (host,) = [address for address in found if "." in address][:1]
    # The port of one scenario at a time; 0 would hide it.
    port = 19877
    command = [str(_PROGRAM), "-H", "0.0.0.0", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _make_bucket(port)
        yield {
            "objectStore": {
                "url": f"s3://{BUCKET}/demo",
                "endpoint": f"http://{host}:{port}",
                "credentialsSecretRef": {"name": "bucket"},
            }
        }
    finally:
        process.kill()
        process.wait()


def _make_bucket(port: int) -> None:
    end = time.monotonic() + _START_S
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.request("PUT", f"/{BUCKET}")
            assert connection.getresponse().status == 200
            return
        except OSError:
            assert time.monotonic() < end, f"{_PROGRAM} does not start"
            time.sleep(0.2)
        finally:
            connection.close()


def backup(name: str, destination: Json, **spec: object) -> str:
    """Return a Backup of `demo`."""
    return made("Backup", name, clusterRef={"name": "demo"}, destination=destination, **spec)


def complete(space: Space, name: str) -> Json:
    """Wait until a Backup is complete; return its status."""
    space.says(f"backup/{name}", "BackupComplete", timeout_s=_DONE_S)
    return dict(space.must(f"backup/{name}")["status"])


def quiet(space: Space, orders: Orders) -> int:
    """End consumers, then producers, so that some messages wait; return the number of acknowledged sends."""
    space.kubectl("scale", "deploy/orders-consumer", "--replicas=0")
    space.until(lambda: not space.items("pods", "app=orders-consumer"), "no consumer", 90)
    orders.until_acknowledged(100)
    space.kubectl("scale", "deploy/orders-producer", "--replicas=0")
    space.until(lambda: not space.items("pods", "app=orders-producer"), "no producer", 90)
    return orders.acknowledged()


def go_on(space: Space, name_server: str, consumers: int) -> None:
    """Let producers and consumers use another cluster; they continue the same history."""
    for name, replicas in (("orders-consumer", consumers), ("orders-producer", 1)):
        variable = f"ORDERS_NAME_SERVERS={name_server}:9876"
        space.kubectl("set", "env", f"deploy/{name}", variable)
        space.kubectl("scale", f"deploy/{name}", f"--replicas={replicas}")


def under_one_name(history: list[Event], name: str) -> list[Event]:
    """Return the history with the cluster *name* called `demo`, because a queue's name begins with its cluster's."""
    return [
        replace(event, queue=event.queue.replace(f"{name}-", "demo-")) if event.queue else event
        for event in history
    ]


def test_consumers_go_on_where_the_backup_stood(
    space: Space, orders: Orders, bucket: Json, record_property: Property
) -> None:
    """The oracle confirms that no acknowledged message is lost, repeated after a commit, or out of order.

    The Cluster is backed up into a claim and a bucket, and by a schedule. From the bucket it is restored under another
    name in another namespace with three replicas, and from the claim under another name in the same one with one replica.
    """
    other = replace(space, name=f"{space.name}-two")
    claim = {"pvc": {"claimName": "backups", "path": "demo"}}
    try:
        space.example("quickstart.yaml")
        space.apply(CLAIM, SECRET)
        other.apply(SECRET)
        space.ready(*READY)
        orders.start(consumers=2)
        orders.until_acknowledged(200)
        space.apply(backup("while-it-serves", bucket))
        first = complete(space, "while-it-serves")
        sent = quiet(space, orders)
        space.apply(backup("to-claim", claim), backup("to-bucket", bucket))
        last, local = complete(space, "to-bucket"), complete(space, "to-claim")

        assert first["verified"]
        assert last["verified"]
        assert last["newBytes"] < last["sizeBytes"], "the second one in a place stores what is new"
        assert local["groups"][0]["entry"] >= first["groups"][0]["entry"]

        space.kubectl("delete", "cluster/demo", "--timeout=90s")
        space.until(lambda: not space.pods("orderlymq.io/cluster=demo"), "no pod is left", 90)
        begun = time.monotonic()
        other.apply(
            made(
                "Cluster",
                "revived",
                replicasPerGroup=3,
                nameServers={"replicas": 1},
                allowedNamespaces=[space.name],
                bootstrap={"fromBackup": {"destination": bucket, "backup": last["backupId"]}},
            ),
            part("Topic", "orders", "revived", type="Ordered", queues=8),
            part(
                "ConsumerGroup",
                "billing",
                "revived",
                ordering="Ordered",
                topics=[{"name": "orders"}],
            ),
        )
        other.ready("cluster/revived", "topic/orders", "consumergroup/billing", timeout_s=_DONE_S)
        record_property("restored_s", round(time.monotonic() - begun, 1))
        assert other.condition("cluster/revived", "Restored")["reason"] == "RestoredFromBackup"  # type: ignore[index]  # it is there
        assert other.must("cluster/revived")["status"]["restored"]["backupId"] == last["backupId"]

        go_on(space, f"revived-nameserver.{other.name}.svc", 2)
        space.until(lambda: orders.acknowledged() >= sent + 100, "sends to the new cluster", 180)
        orders.finish()
        kept(judge(under_one_name(orders.history(), "revived")), at_least=300)
        _refuses_another_beginning(other)
        _from_claim(space, claim, local["backupId"])
        _deletes_what_is_stored(space)
        _by_schedule(space, bucket)
    finally:
        sweep(other)


def _by_schedule(space: Space, bucket: Json) -> None:
    """Check that a Backup is made each minute and completes."""
    space.apply(
        made(
            "ScheduledBackup",
            "minutely",
            clusterRef={"name": "again"},
            destination=bucket,
            schedule="* * * * *",
            retention={"keepLast": 1},
        )
    )
    space.says("scheduledbackup/minutely", "Scheduled")
    name = "scheduledbackup/minutely"
    space.until(lambda: space.must(name)["status"].get("lastBackup") is not None, "it is due", 90)
    complete(space, space.must(name)["status"]["lastBackup"])
    space.patch(name, {"suspend": True})
    space.says(name, "Suspended")


def _refuses_another_beginning(space: Space) -> None:
    """Check that `bootstrap.fromBackup` of an existing Cluster cannot be removed."""
    found = space.must("cluster/revived")["spec"]["bootstrap"]["fromBackup"]
    said = space.kubectl(
        *("patch", "cluster/revived", "--type=merge", "-p", '{"spec":{"bootstrap":null}}'),
        check=False,
    )
    assert space.must("cluster/revived")["spec"]["bootstrap"]["fromBackup"] == found, said


def _from_claim(space: Space, claim: Json, backup_id: str) -> None:
    """Restore from the backup in the claim: the one replica runs on the claim's node, and has the topic."""
    say("restoring from the claim")
    space.apply(
        small("again", bootstrap={"fromBackup": {"destination": claim, "backup": backup_id}})
    )
    space.ready("cluster/again", timeout_s=_DONE_S)
    words = ("topic", "show", "orders", "--name-server", "again-nameserver:9876", "--json")
    shown = space.kubectl("exec", space.leader("again"), "-c", "broker", "--", "orderlymq", *words)
    assert '"again-0"' in shown


def _deletes_what_is_stored(space: Space) -> None:
    """Delete two Backups: with deletionPolicy Delete the stored data is deleted first, with Retain it stays."""
    space.patch("backup/while-it-serves", {"deletionPolicy": "Delete"})
    space.kubectl("delete", "backup/while-it-serves", "backup/to-bucket", "--timeout=180s")
    (job,) = [
        job
        for job in space.items("jobs", "orderlymq.io/backup=while-it-serves")
        if job["metadata"]["name"].endswith("-delete")
    ]
    assert job["status"].get("succeeded") == 1
    assert not [
        job
        for job in space.items("jobs", "orderlymq.io/backup=to-bucket")
        if job["metadata"]["name"].endswith("-delete")
    ]
