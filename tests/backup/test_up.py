"""Whole clusters with the commands `backup create`, `list`, `verify`, and `up --from-backup` under another name."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from orderlymq import (
    AdminClient,
    Consumer,
    ConsumerSettings,
    Message,
    OrderedContext,
    OrderedResult,
    Producer,
    ReceivedMessage,
    TransactionProducer,
    TransactionState,
)
from orderlymq_backup.storage import Folder
from orderlymq_operator.commands import up
from orderlymq_operator.local.directory import DataDirectory, State
from orderlymq_operator.resources.manifests.combination import combine
from orderlymq_operator.resources.manifests.reader import read
from orderlymq_testing.cluster import Cluster
from tests.backup.clusters import back_up
from tests.clients.localcluster import LocalCluster
from tests.ports import free_row
from tests.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(600)]

CLUSTER = """
apiVersion: orderlymq.io/v1alpha1
kind: Cluster
metadata: {{name: new}}
spec:
  groups: {groups}
  replicasPerGroup: 1
  local: {{nameServerPort: {port}, brokerPort: {broker}, raftPort: {raft}, httpPort: {http}}}
"""
KEYS = [f"key-{number}" for number in range(12)]


class Till:
    """A listener that fails for bodies that begin with `bad`."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    async def __call__(
        self, messages: Sequence[ReceivedMessage], _context: OrderedContext
    ) -> OrderedResult:
        message = messages[0]
        self.seen.append((str(message.key), message.text))
        return OrderedResult.SUSPEND if message.text.startswith("bad") else OrderedResult.SUCCESS

    def of(self, key: str) -> list[str]:
        return [text for of, text in self.seen if of == key]


def consumer(cluster: LocalCluster, topic: str, group: str, till: Till) -> Consumer:
    return Consumer(
        group,
        cluster.name_server,
        topics=topic,
        ordered=True,
        consume_from="first",
        listener=till,
        settings=ConsumerSettings(max_reconsume_times=1, suspend_current_queue_time=0.01),
    )


def unknown(_: object) -> TransactionState:
    return TransactionState.UNKNOWN


def commit(_: object) -> TransactionState:
    return TransactionState.COMMIT


def cluster(directory: Path, name: str, from_backup: str = "") -> LocalCluster:
    environment = {"ORDERLYMQ_DATA_DIR": str(directory / "data")}
    return LocalCluster(
        directory,
        groups=2,
        replicas=1,
        name=name,
        from_backup=from_backup,
        environment=environment,
    )


async def test_a_cluster_begins_with_the_backup_of_another(tmp_path: Path) -> None:
    """Law: the new cluster has all groups' topics, messages, offsets, parked keys, delayed messages and open transactions.

    Consumers continue after the offsets that they had committed.
    """
    place = str(tmp_path / "backups")
    former = cluster(tmp_path / "former", "shop")
    former.up()
    try:
        topic = former.topic()
        group = former.group(topic, on_dead_letter="HoldKey")
        await fill(former, topic, group)
        made = json.loads(former.command("backup", "create", "--to", place, "--json"))
        # A message after the backup is not in it.
        async with Producer("p", former.name_server) as producer:
            await producer.send(topic, "later", key=KEYS[0])
        (listed,) = json.loads(former.command("backup", "list", "--from", place, "--json"))
        former.command("backup", "verify", "--from", place)
    finally:
        former.down()
    revived = cluster(tmp_path / "revived", "revived", f"{place}@{made['id']}")
    revived.up()
    try:
        await check(revived, topic, group)
    finally:
        revived.down()

    assert listed["id"] == made["id"]
    assert [each["group"] for each in listed["groups"]] == ["shop-0", "shop-1"]


async def fill(former: LocalCluster, topic: str, group: str) -> None:
    """Leave consumed and unconsumed messages, a parked key, a delayed message and an open transaction."""
    till = Till()
    async with Producer("p", former.name_server) as producer:
        for key in KEYS:
            await producer.send(topic, "1", key=key)
        await producer.send(topic, "bad", key="held")
        async with consumer(former, topic, group, till):
            await until(lambda: len(till.seen) >= len(KEYS) + 2, 30)
        for key in KEYS:
            await producer.send(topic, "2", key=key)
        await producer.send(topic, "behind", key="held")
        await producer.send(Message(topic=topic, body=b"delayed", key="delayed", delay=20))
    async with TransactionProducer("tx", former.name_server, check=unknown) as producer:
        await producer.send_in_transaction(topic, "half", key="half", execute=unknown)


async def check(revived: LocalCluster, topic: str, group: str) -> None:
    """Check that all of it exists and still works."""
    async with AdminClient(revived.name_server) as admin:
        brokers = await admin.brokers()
    till = Till()
    async with (
        consumer(revived, topic, group, till),
        TransactionProducer("tx", revived.name_server, check=commit) as teller,
        Producer("p", revived.name_server) as producer,
    ):
        # Brokers know only producers that have sent to them.
        await teller.send(topic, "here", key="teller")
        for key in KEYS:
            await producer.send(topic, "3", key=key)
        await until(lambda: all(till.of(key)[-1:] == ["3"] for key in KEYS), 30)
        await until(lambda: till.of("half") == ["half"], 30)
        await until(lambda: till.of("delayed") == ["delayed"], 40)
    async with AdminClient(revived.name_server) as admin:
        parked = await admin.parked_keys(group)

    assert sorted(brokers) == ["revived-0", "revived-1"]
    assert [each.key for each in parked] == ["held"]
    assert [till.of(key) for key in KEYS] == [["2", "3"]] * len(KEYS)
    assert till.of("held") == []


async def test_a_backup_is_restored_whole_or_not_at_all(tmp_path: Path) -> None:
    """Law: without a backup, with another number of groups, or over an existing cluster, the command makes nothing."""
    place, manifest = tmp_path / "backups", tmp_path / "cluster.yaml"
    with Cluster(tmp_path / "former") as former:
        await back_up(former.name_server, Folder(place))

    def begin(where: str, groups: int) -> str:
        port = free_row(90)
        manifest.write_text(
            CLUSTER.format(
                groups=groups, port=port, broker=port + 12, raft=port + 40, http=port + 70
            )
        )
        words = ["-f", str(manifest), "--data-dir", str(tmp_path / "data"), "--from-backup", where]
        return CliRunner().invoke(up, [*words, "--detach"]).output

    told = [
        begin(str(tmp_path / "nothing"), 1),
        begin(f"{place}@newest", 1),
        begin(str(place), 2),
    ]
    left = list((tmp_path / "data" / "replicas").iterdir())
    directory = DataDirectory(tmp_path / "data")
    directory.save(State(combine(read([manifest]), None)))
    told.append(begin(str(place), 1))

    reasons = (
        "nothing does not exist",
        "'newest' is not the id of a backup",
        "set spec.groups to 1",
        "already has a cluster",
    )
    for reason, output in zip(reasons, told, strict=True):
        assert reason in output
    assert left == []
