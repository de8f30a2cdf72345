"""The ordered sink during a queue expansion of its topic, against a scripted cluster."""

import asyncio
from collections.abc import Callable

import pyarrow as pa
import pytest

from orderlymq.errors import SendRefused
from orderlymq.producer.selectors import hash_index
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.remoting.connection import Connection
from orderlymq_spark.options import parse_sink
from orderlymq_spark.sink.writer import OrderedBatchWriter
from tests.client.fakecluster import FakeCluster, Fault, running

KEYS = [f"k{number}" for number in range(8)]
ROWS = [{"sharding_key": key, "body": f"{key}-{n}"} for n in range(6) for key in KEYS]
SENDS = (int(RequestCode.SEND_MESSAGE_V2), int(RequestCode.SEND_BATCH_MESSAGE))


def _refused(cluster: FakeCluster) -> Fault:
    """Refuse a send because the topic has grown."""

    def fault(command: RemotingCommand, _conn: Connection) -> RemotingCommand:
        cluster.topics["T"] = 9
        return command.reply(int(ResponseCode.ORDERLYMQ_QUEUES_CHANGED), remark="choose again")

    return fault


def _refused_after_a_lost_answer(cluster: FakeCluster) -> Fault:
    """Store a send, lose the answer, and refuse the next try because the topic has grown."""

    def fault(command: RemotingCommand, conn: Connection) -> None:
        cluster.serve(command, conn)
        cluster.faults[command.code].insert(0, _refused(cluster))
        conn.close(orderly=False)

    return fault


@pytest.mark.parametrize("change", [_refused, _refused_after_a_lost_answer])
async def test_rows_behind_an_expansion_go_where_their_keys_belong(
    change: Callable[[FakeCluster], Fault],
) -> None:
    """Law: for rows after the fence, a task chooses queues from the new list, and each row is stored once."""
    async with running(topics={"T": 4}, ordered=True) as cluster:
        for code in SENDS:
            cluster.faults[code] = [cluster.serve] * 5 + [change(cluster)]
        options = parse_sink(
            {"bootstrap": cluster.address, "topic": "T", "appId": "job", "batchBytes": "1"}
        )
        writer = OrderedBatchWriter(options, {"sharding_key": "string", "body": "string"})
        await asyncio.to_thread(writer.write, iter([pa.RecordBatch.from_pylist(ROWS)]))

        stored = [each.body.decode() for each in cluster.physical.values()]
        queues = [each.queue_id for each in cluster.physical.values()]
        totals = [each.ext["omqQueueTotal"] for each in cluster.seen if each.code in SENDS]

    assert len(stored) == len(ROWS)
    for key in KEYS:
        bodies = [each for each in stored if each.startswith(key)]
        assert bodies == [f"{key}-{number}" for number in range(6)]
    late = totals.count("9")
    assert late > len(ROWS) // 2
    assert totals[-late:] == ["9"] * late
    for body, queue in list(zip(stored, queues, strict=True))[-late:]:
        assert queue == hash_index(body.partition("-")[0], 9)


async def test_a_refused_send_is_the_error_of_its_task() -> None:
    """Once, the broker's sentence was hidden in a group of errors, and the status of the pipeline lacked it."""

    def refused(command: RemotingCommand, _conn: Connection) -> RemotingCommand:
        return command.reply(int(ResponseCode.MESSAGE_ILLEGAL), remark="the topic takes no delays")

    async with running(topics={"T": 4}, ordered=True) as cluster:
        for code in SENDS:
            cluster.faults[code] = [refused] * 9
        options = parse_sink({"bootstrap": cluster.address, "topic": "T", "appId": "job"})
        writer = OrderedBatchWriter(options, {"sharding_key": "string", "body": "string"})

        with pytest.raises(SendRefused, match="the topic takes no delays"):
            await asyncio.to_thread(writer.write, iter([pa.RecordBatch.from_pylist(ROWS)]))
