"""Offset stores: what was remembered, what lasts."""

from pathlib import Path

from orderlymq.identity import make_client_id, parse_name_servers
from orderlymq.instance import ClientInstance
from orderlymq.offsets import NOT_FOUND, BrokerOffsets, LocalOffsets, local_offsets_path
from orderlymq_protocol.messagequeue import MessageQueue
from tests.client import fakecluster
from tests.client.fakecluster import BROKER, running

QUEUE = MessageQueue("T", BROKER, 0)


async def test_broker_offsets_are_committed_once_per_change() -> None:
    """OFS-06: persist sends what changed and nothing else; increase-only keeps the higher one."""
    async with running(topics={"T": 1}) as cluster:
        instance = ClientInstance(cluster.address)
        await instance.start()
        store = BrokerOffsets(instance, "G")
        assert await store.fetch(QUEUE) == NOT_FOUND

        store.update(QUEUE, 5, epoch=2, increase_only=True)
        store.update(QUEUE, 3, epoch=2, increase_only=True)
        await store.persist([QUEUE])
        await store.persist([QUEUE])
        assert (cluster.offsets["G", "T", 0], cluster.codes().count(15)) == (5, 1)
        store.update(QUEUE, 3, epoch=2, increase_only=False)
        cluster.faults[15] = [fakecluster.refuse(1)]
        await store.persist([QUEUE])
        await store.persist([QUEUE])

        assert await store.fetch(QUEUE) == 3
        store.remove(QUEUE)
        assert store.read(QUEUE) == NOT_FOUND
        await instance.close()


async def test_local_offsets_survive_in_rocketmqs_file_and_a_torn_file_falls_back(
    tmp_path: Path,
) -> None:
    """BRD-02: raw object keys, atomic, with one older copy."""
    path = tmp_path / "offsets.json"
    store = LocalOffsets(path)
    await store.load()
    store.update(QUEUE, 7, epoch=None, increase_only=True)
    await store.persist([])
    store.update(QUEUE, 9, epoch=None, increase_only=True)
    await store.persist([])
    again = LocalOffsets(path)
    await again.load()
    text = path.read_bytes()
    path.write_bytes(text[:20])
    torn = LocalOffsets(path)
    await torn.load()

    assert text == (b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:9}}')
    assert await again.fetch(QUEUE) == 9
    assert await torn.fetch(QUEUE) == 7
    assert await LocalOffsets(tmp_path / "none.json").fetch(QUEUE) == NOT_FOUND


def test_the_local_file_stands_where_rocketmq_puts_it(tmp_path: Path) -> None:
    """OFS-05."""
    path = local_offsets_path("192.0.2.1@DEFAULT", "G", tmp_path)

    assert path == tmp_path / ".rocketmq_offsets" / "192.0.2.1@DEFAULT" / "G" / "offsets.json"


def test_identities() -> None:
    """CLI-01, CLI-04, CFG-C1: ip@pid#nanos, unit, name server lists."""
    own = make_client_id("192.0.2.1", "", "")

    assert own.startswith("192.0.2.1@")
    assert "#" in own
    assert make_client_id("192.0.2.1", "DEFAULT", "u") == "192.0.2.1@DEFAULT@u"
    assert parse_name_servers("a:1;b:2, c:3") == ("a:1", "b:2", "c:3")
