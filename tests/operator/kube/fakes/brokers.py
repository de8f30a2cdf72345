"""
Brokers and name servers of one Cluster, as the operator meets them on the wire at addresses of this machine, one per pod.

Rule: they know nothing of manifests and plans. What a broker group received survives its pods, as on volumes.
"""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
from aiohttp import web

from orderlymq_operator.kube.objects import names
from orderlymq_operator.resources.user import fingerprint
from orderlymq_protocol.body.config import SubscriptionGroupConfig
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.header.extensions import EXT_BYTES, EXT_CONNECTIONS, EXT_REQUESTS, EXT_TOKEN
from orderlymq_runtime.remoting.connection import Connection
from orderlymq_runtime.remoting.server import RemotingServer
from tests.operator.plan.forecast.foretold import Fact
from tests.ports import free_ports
from tests.waiting import turns

Json = dict[str, Any]
_EVERYWHERE: Final = "0.0.0.0"
# The third number of their addresses; those of broker groups begin behind it.
_NAME_SERVERS: Final = 9


def address_of(group: int | None, number: int) -> str:
    """Return the address of a pod by its broker group (None for name servers) and its number there."""
    return f"127.0.{_NAME_SERVERS if group is None else _NAME_SERVERS + 1 + group}.{number + 1}"


def _place(address: str) -> tuple[int | None, int]:
    """Return broker group and number of a pod by its address."""
    third, fourth = map(int, address.split(".")[2:])
    return None if third == _NAME_SERVERS else third - _NAME_SERVERS - 1, fourth - 1


@dataclass
class RaftGroup:
    """The state on which the replicas of a raft group agree; nodes count from 1."""

    voters: set[int]
    learners: set[int] = field(default_factory=set)
    leader: int | None = None
    led: int | None = None
    term: int = 0
    writable: bool = True
    token: int = 0
    topics: dict[str, Json] = field(default_factory=dict)
    groups: dict[str, Json] = field(default_factory=dict)
    users: dict[str, Json] = field(default_factory=dict)

    def elect(self, running: set[int]) -> None:
        """Let a voter lead if a majority of the voters runs."""
        fit = self.voters & running
        if self.leader in fit:
            return
        self.leader = None
        if 2 * len(fit) > len(self.voters):
            # The former leader, which only restarted, has everything.
            self.lead(self.led if self.led in fit else min(fit))

    def lead(self, node: int) -> None:
        """Begin a term with this node as leader."""
        self.leader = self.led = node
        self.term += 1


class Brokers:
    """All brokers and name servers.

    Attributes:
        groups: by number, from the first start of a replica on.
        lists: the queue lists that each name server publishes, by number.
        running: the addresses of running pods.
    """

    def __init__(self) -> None:
        self.groups: dict[int, RaftGroup] = {}
        self.lists: dict[int, dict[str, str]] = {}
        self.running: set[str] = set()

    def elect(self) -> None:
        """Let each raft group have a leader if it can."""
        places = [_place(address) for address in self.running]
        for index, group in self.groups.items():
            group.elect({number + 1 for place, number in places if place == index})

    def facts(self) -> dict[Fact, object]:
        """Return everything here that the operator may change, by name."""
        found: dict[Fact, object] = {("server", str(index), ""): True for index in self.lists}
        for index, group in self.groups.items():
            name = f"demo-{index}"
            found["lead", name, ""] = group.led
            found["writable", name, ""] = group.writable
            for node in group.voters | group.learners:
                found["member", f"{name}/{node}", ""] = node in group.voters
            for kind, table in (
                ("topic", group.topics),
                ("group", group.groups),
                ("user", group.users),
            ):
                found |= {(kind, key, name): json.dumps(each) for key, each in table.items()}
        for config in self.lists.values():
            found |= {("list", topic, text): True for topic, text in config.items()}
        return found

    # -- pages -----------------------------------------------------------------------------------

    async def status(self, request: web.Request) -> web.Response:
        """Answer the page /status."""
        assert request.transport is not None
        address = str(request.transport.get_extra_info("sockname")[0])
        index, number = _place(address)
        group = self.groups.get(index) if index is not None else None
        if address not in self.running or group is None:
            return web.Response(status=503)
        node, leads = number + 1, group.leader == number + 1
        role = "leader" if leads else "follower" if node in group.voters else "learner"
        members = sorted(group.voters | group.learners)
        heard = {_place(each)[1] + 1 for each in self.running if _place(each)[0] == index}
        peers = {str(each): {"lag": 0, "active": each in heard} for each in members if each != node}
        return web.json_response(
            {
                "cluster": "demo",
                "group": f"demo-{index}",
                "node": node,
                "role": role,
                "term": group.term,
                "leader": group.leader,
                "replicas": peers if leads else {},
                "voters": sorted(group.voters),
                "learners": sorted(group.learners),
            }
        )

    # -- requests --------------------------------------------------------------------------------

    def connection_made(self, conn: Connection) -> None:
        pass

    def connection_lost(self, conn: Connection) -> None:
        pass

    def received(self, conn: Connection, command: RemotingCommand) -> None:
        assert conn.local is not None
        address = conn.local[0]
        index, number = _place(address)
        if address not in self.running:
            conn.close()
            return
        if index is None:
            conn.send(self._by_name_server(number, command))
            return
        group = self.groups[index]
        if group.leader != number + 1:
            conn.send(command.reply(ResponseCode.SYSTEM_BUSY, remark="another replica leads"))
            return
        conn.send(_by_leader(group, command))

    def _by_name_server(self, number: int, asked: RemotingCommand) -> RemotingCommand:
        config = self.lists[number]
        match asked.code:
            case RequestCode.GET_KVLIST_BY_NAMESPACE:
                return asked.reply(body=orjson.dumps({"table": config}))
            case RequestCode.PUT_KV_CONFIG:
                config[asked.ext["key"]] = asked.ext["value"]
            case RequestCode.DELETE_KV_CONFIG:
                config.pop(asked.ext["key"], None)
            case RequestCode.GET_BROKER_CLUSTER_INFO:
                led = [f"demo-{i}" for i, each in self.groups.items() if each.leader is not None]
                table = {
                    name: {"cluster": "demo", "brokerName": name, "brokerAddrs": {}} for name in led
                }
                body = {"brokerAddrTable": table, "clusterAddrTable": {}}
                return asked.reply(body=orjson.dumps(body))
            case _:
                return asked.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        return asked.reply()


def _by_leader(group: RaftGroup, asked: RemotingCommand) -> RemotingCommand:
    answer = _ANSWERS.get(asked.code)
    if answer is None:
        return asked.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f"{asked.code}")
    token = int(asked.ext.get(EXT_TOKEN, group.token))
    if token < group.token:
        return asked.reply(
            ResponseCode.SYSTEM_ERROR, remark=f"another operator has token {group.token}"
        )
    group.token = token
    told = answer(group, asked)
    if isinstance(told, ResponseCode):
        return asked.reply(told)
    return asked.reply(body=b"" if told is None else orjson.dumps(told))


def topic_config(ext: Mapping[str, str]) -> Json:
    """Return a topic as brokers list it, from the fields of the request that set it."""
    return {
        "topicName": ext["topic"],
        "readQueueNums": int(ext["readQueueNums"]),
        "writeQueueNums": int(ext["writeQueueNums"]),
        "perm": int(ext["perm"]),
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": ext["order"] == "true",
    }


def _set_topic(group: RaftGroup, asked: RemotingCommand) -> None:
    group.topics[asked.ext["topic"]] = topic_config(asked.ext)


def _set_group(group: RaftGroup, asked: RemotingCommand) -> None:
    config = SubscriptionGroupConfig.from_json(asked.body)
    group.groups[config.group_name] = orjson.loads(asked.body)


def _rights(text: str) -> dict[str, str]:
    return dict(each.split("=") for each in text.split(",") if each)


def _set_user(group: RaftGroup, asked: RemotingCommand) -> None:
    ext = asked.ext
    key = ext["accessKey"]
    group.users[key] = {
        "accessKey": key,
        "admin": ext["admin"] == "true",
        "defaultTopicPerm": ext["defaultTopicPerm"],
        "defaultGroupPerm": ext["defaultGroupPerm"],
        "topicPerms": _rights(ext["topicPerms"]),
        "groupPerms": _rights(ext["groupPerms"]),
        "whiteRemoteAddress": ext["whiteRemoteAddress"],
        "fingerprint": fingerprint(key, ext["secretKey"]),
        "requestsPerSecond": int(ext[EXT_REQUESTS]),
        "bytesPerSecond": int(ext[EXT_BYTES]),
        "connections": int(ext[EXT_CONNECTIONS]),
    }


def _change_members(group: RaftGroup, asked: RemotingCommand) -> None:
    body = orjson.loads(asked.body)
    node = body["node"]
    match body["action"]:
        case "add-learner":
            group.learners.add(node)
        case "promote":
            group.learners.discard(node)
            group.voters.add(node)
        case "remove":
            group.learners.discard(node)
            group.voters.discard(node)


def _transfer(group: RaftGroup, asked: RemotingCommand) -> None:
    group.lead(int(asked.ext["target"]))


def _configure(group: RaftGroup, asked: RemotingCommand) -> None:
    for line in asked.body.decode().split():
        key, _, value = line.partition("=")
        if key == "brokerPermission":
            group.writable = value == "6"


_ANSWERS: Final[
    Mapping[int, Callable[[RaftGroup, RemotingCommand], Json | ResponseCode | None]]
] = {
    RequestCode.GET_ALL_TOPIC_CONFIG: lambda group, _: {
        "topicConfigTable": group.topics,
        "dataVersion": {},
    },
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: lambda group, _: {
        "subscriptionGroupTable": group.groups,
        "dataVersion": {},
    },
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO: lambda group, _: {
        "accounts": list(group.users.values())
    },
    RequestCode.ORDERLYMQ_QUEUE_EXPANSION: lambda group, _: {EXT_TOKEN: group.token, "topics": []},
    RequestCode.ORDERLYMQ_SET_ASSIGNMENT: lambda group, _: None,
    RequestCode.ORDERLYMQ_LOCK_TABLE: lambda group, _: {"locks": []},
    RequestCode.ORDERLYMQ_LANES: lambda group, _: ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: lambda group, _: ResponseCode.CONSUMER_NOT_ONLINE,
    RequestCode.GET_CONSUME_STATS: lambda group, _: ResponseCode.SYSTEM_ERROR,
    RequestCode.GET_TOPIC_STATS_INFO: lambda group, _: {"offsetTable": {}},
    RequestCode.UPDATE_AND_CREATE_TOPIC: _set_topic,
    RequestCode.DELETE_TOPIC_IN_BROKER: lambda group, asked: _drop(
        group.topics, asked.ext["topic"]
    ),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _set_group,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: lambda group, asked: group.groups.get(
        asked.ext["group"], ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    ),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: lambda group, asked: _drop(
        group.groups, asked.ext["groupName"]
    ),
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: _set_user,
    RequestCode.DELETE_ACL_CONFIG: lambda group, asked: _drop(group.users, asked.ext["accessKey"]),
    RequestCode.ORDERLYMQ_CHANGE_MEMBERSHIP: _change_members,
    RequestCode.ORDERLYMQ_TRANSFER_LEADERSHIP: _transfer,
    RequestCode.UPDATE_BROKER_CONFIG: _configure,
    RequestCode.GET_MAX_OFFSET: lambda group, _: None,
    RequestCode.GET_MIN_OFFSET: lambda group, _: None,
    RequestCode.UPDATE_CONSUMER_OFFSET: lambda group, _: None,
}


def _drop(table: dict[str, Json], key: str) -> None:
    table.pop(key, None)


@asynccontextmanager
async def serving(
    brokers: Brokers, patch: Callable[[object, str, Any], None]
) -> AsyncIterator[None]:
    """Serve them; *patch* sets the ports at which the operator calls pods."""
    pages = web.Application()
    pages.router.add_get("/status", brokers.status)
    runner = web.AppRunner(pages, access_log=None)
    await runner.setup()
    (port,) = free_ports(1)
    await web.TCPSite(runner, _EVERYWHERE, port).start()
    server = RemotingServer(brokers)
    _, remoting = await server.listen(_EVERYWHERE, 0)
    patch(names, "HTTP_PORT", port)
    for each in ("BROKER_PORT", "NAME_SERVER_PORT"):
        patch(names, each, remoting)
    try:
        yield
    finally:
        await server.close()
        await turns()
        await runner.cleanup()
