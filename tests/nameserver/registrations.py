"""Helpers that write registrations and requests for tests of the name server."""

import json
from dataclasses import replace
from typing import Any

from orderlymq_nameserver.kv import KvTable
from orderlymq_nameserver.processor import NameServerCore
from orderlymq_nameserver.registrations import Identity
from orderlymq_protocol.body.catalogue import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
)
from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_protocol.message.record import body_crc

GROUP_A = Identity("C", "group-a", 0, "10.0.0.1:10911")
GROUP_B = Identity("C", "group-b", 0, "10.0.0.2:10911")
EXPIRY_MS = 120_000


def topic(
    name: str, queues: int = 4, *, order: bool = False, flag: int = 0, perm: int = 6
) -> TopicConfig:
    return TopicConfig(name, queues, queues, perm, topic_sys_flag=flag, order=order)


def registration(counter: int, *topics: TopicConfig, timestamp: int = 1) -> RegisterBrokerBody:
    table = {each.topic_name: each for each in topics}
    return RegisterBrokerBody(TopicConfigTable(table, DataVersion(counter, timestamp)))


def core() -> NameServerCore:
    return NameServerCore(KvTable(), expiry_ms=EXPIRY_MS)


def identity_ext(who: Identity) -> dict[str, str]:
    return {
        "brokerName": who.broker_name,
        "brokerAddr": who.address,
        "clusterName": who.cluster,
        "brokerId": str(who.broker_id),
    }


def register_request(
    who: Identity,
    body: RegisterBrokerBody,
    *,
    compressed: bool = False,
    crc32: int | None = None,
    **ext: str,
) -> RemotingCommand:
    data = body.encode(compressed=compressed)
    return request(
        103,
        {
            **identity_ext(who),
            "haServerAddr": "10.0.0.1:10912",
            "compressed": str(compressed).lower(),
            "bodyCrc32": str(body_crc(data) if crc32 is None else crc32),
            **ext,
        },
        data,
    )


def ask(core: NameServerCore, code: int, body: bytes = b"", /, **ext: str) -> RemotingCommand:
    """Send a question on a connection that has registered nothing."""
    return core.handle(request(code, ext, body), 99, 0)


def register(
    core: NameServerCore,
    who: Identity,
    body: RegisterBrokerBody,
    *,
    connection: int = 1,
    now_ms: int = 0,
    restored: str | None = None,
) -> RemotingCommand:
    ext = {} if restored is None else {"restoredGroups": restored}
    command = register_request(who, body)
    reply = core.handle(replace(command, ext=command.ext | ext), connection, now_ms)
    assert reply.code == 0, reply
    return reply


def route(core: NameServerCore, name: str) -> Any:
    """Return the route as a client would read it, None if the answer is code 17."""
    reply = ask(core, 105, topic=name)
    core.routes.check()
    if reply.code == 17:
        return None
    assert b" " not in reply.body
    return json.loads(reply.body)


def queues(core: NameServerCore, name: str) -> dict[str, int]:
    """Return the number of writable queues of each broker, in the order of the route."""
    found = route(core, name)
    if found is None:
        return {}
    assert [q["brokerName"] for q in found["queueDatas"]] == [
        b["brokerName"] for b in found["brokerDatas"]
    ]
    return {q["brokerName"]: q["writeQueueNums"] for q in found["queueDatas"]}


def queues_of_go(core: NameServerCore, name: str) -> list[tuple[str, int]]:
    """Return the queues to which RocketMQ's Go client sends (v2.1.2, route.go): it does not read orderTopicConf."""
    found = route(core, name)
    addresses = {each["brokerName"]: each["brokerAddrs"] for each in found["brokerDatas"]}
    return [
        (each["brokerName"], number)
        for each in found["queueDatas"]
        if each["perm"] & 2 and addresses.get(each["brokerName"], {}).get("0")
        for number in range(each["writeQueueNums"])
    ]
