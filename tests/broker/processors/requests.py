"""Requests as clients write them; a test states only the parts that it is about."""

from typing import Any

from orderlymq_broker.core.effects import Caller, Propose
from orderlymq_broker.state.records import Record
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.message.record import StoredMessage, iter_records
from tests.broker.processors.driver import ALICE, Shell

BROKER = "broker-a"
# The properties that the broker stores with every message, in addition to the sender's.
STORED_WITH = {"CLUSTER": "shop", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


def create(shell: Shell, *records: Record) -> None:
    """Create topics and groups as an administrator would."""
    shell.run([Propose(list(records))])
    shell.settle()


def send_ext(topic: str, properties: str = "", **letters: Any) -> dict[str, str]:
    ext = {
        "a": "producers",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": "0",
        "f": "0",
        "g": "1699999999000",
        "h": "0",
        "i": properties,
        "j": "0",
        "k": "false",
        "m": "false",
    }
    ext.update({letter: str(value) for letter, value in letters.items()})
    return ext


def properties(**values: str) -> str:
    return "\x02".join(f"{name}\x01{value}" for name, value in values.items())


def send(
    shell: Shell,
    topic: str = "orders",
    body: bytes = b"paid",
    props: str = "",
    *,
    caller: Caller = ALICE,
    version: int = 409,
    **letters: Any,
) -> RemotingCommand:
    return shell.call(310, send_ext(topic, props, **letters), body, caller=caller, version=version)


def pull_ext(
    group: str = "billing",
    topic: str = "orders",
    queue: int = 0,
    offset: int = 0,
    **more: Any,
) -> dict[str, str]:
    ext = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": str(queue),
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "15000",
        "subVersion": "0",
        "subscription": "*",
    }
    ext.update({name: str(value) for name, value in more.items()})
    return ext


def pull(shell: Shell, *, caller: Caller = ALICE, code: int = 11, **fields: Any) -> RemotingCommand:
    return shell.call(code, pull_ext(**fields), caller=caller)


def bodies(reply: RemotingCommand) -> list[bytes]:
    return [message.body for message in iter_records(reply.body)]


def messages(reply: RemotingCommand) -> list[StoredMessage]:
    return list(iter_records(reply.body))


def heartbeat_body(
    client: str,
    group: str = "billing",
    topics: tuple[str, ...] = ("orders",),
    *,
    model: str = "CLUSTERING",
    tags: str = "*",
    kind: str = "TAG",
    sub_version: int = 1,
    from_where: str = "CONSUME_FROM_FIRST_OFFSET",
    consume_type: str = "CONSUME_PASSIVELY",
) -> bytes:
    return fastjson.dumps(
        {
            "clientID": client,
            "consumerDataSet": [
                {
                    "groupName": group,
                    "consumeType": consume_type,
                    "messageModel": model,
                    "consumeFromWhere": from_where,
                    "unitMode": False,
                    "subscriptionDataSet": [
                        {
                            "topic": topic,
                            "subString": tags,
                            "subVersion": sub_version,
                            "expressionType": kind,
                        }
                        for topic in (*topics, f"%RETRY%{group}")
                    ],
                }
            ],
            "producerDataSet": [{"groupName": "CLIENT_INNER_PRODUCER"}],
        }
    )


def heartbeat(shell: Shell, client: str, *, caller: Caller = ALICE, **more: Any) -> RemotingCommand:
    return shell.call(34, {}, heartbeat_body(client, **more), caller=caller)


def lock_body(
    client: str,
    *queues: int,
    group: str = "billing",
    topic: str = "orders",
    broker: str = BROKER,
    lease_ms: int | None = None,
) -> bytes:
    body: dict[str, Any] = {
        "clientId": client,
        "consumerGroup": group,
        "mqSet": [{"brokerName": broker, "queueId": queue, "topic": topic} for queue in queues],
    }
    if lease_ms is not None:
        body["leaseMillis"] = lease_ms
    return fastjson.dumps(body)


def lock(
    shell: Shell, client: str, *queues: int, caller: Caller = ALICE, **more: Any
) -> dict[int, int]:
    """Ask for locks; return the granted epochs by queue."""
    reply = shell.call(41, {}, lock_body(client, *queues, **more), caller=caller)
    body = fastjson.loads(reply.body)
    return {
        queue["queueId"]: epoch
        for queue, epoch in zip(body["lockOKMQSet"], body["epochs"], strict=True)
    }


def unlock(shell: Shell, client: str, *queues: int, caller: Caller = ALICE, **more: Any) -> None:
    assert shell.call(42, {}, lock_body(client, *queues, **more), caller=caller).code == 0


def commit_ext(
    offset: int, queue: int = 0, group: str = "billing", topic: str = "orders", **more: str
) -> dict[str, str]:
    return {
        "consumerGroup": group,
        "topic": topic,
        "queueId": str(queue),
        "commitOffset": str(offset),
        **more,
    }


def offset_of(
    shell: Shell, queue: int = 0, group: str = "billing", topic: str = "orders"
) -> int | None:
    return shell.state.offsets.get(group, topic, queue)
