"""
Answers of a name server on an additional listener: addresses of that listener, or a refusal.

The rule (ADR 25): broker groups register their one stable address, which clients of another network cannot
reach. This module replaces it in every answer that has one. If a broker group has no address for the
listener, the answer is a refusal, because a route without its queues would move keys. Request codes that are
not listed here are refused, so that a new answer cannot leak an internal address. Pure; the addresses come
from `addressfile`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, TypeAlias

from orderlymq_protocol.body import fastjson
from orderlymq_protocol.body.catalogue import (
    MASTER_ID,
    BrokerData,
    ClusterInfo,
    ModelError,
    TopicList,
    TopicRouteData,
)
from orderlymq_protocol.body.fastjson import JsonError
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand

# Cached answers, before and after their translation together: 16,000 routes of three broker groups. A pod has 256
# MiB.
ANSWERS_BYTES_MAX: Final = 16 << 20

# By listener, then by broker group: `host:port`.
Table: TypeAlias = Mapping[str, Mapping[str, str]]

# Cached answers: clients ask for every topic twice a minute, tools for the cluster. Other answers are small. The
# answer of 901 repeats names that any client chooses, so it must not use memory.
_KEPT: Final = frozenset({RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_BROKER_CLUSTER_INFO})

# Their answers have no address. Key-value texts may have one, so they are refused.
_PLAIN: Final = frozenset(
    {
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        RequestCode.GET_TOPICS_BY_CLUSTER,
        RequestCode.GET_UNIT_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
    }
)


class OutsideAddressMissing(LookupError):  # noqa: N818 - the name that clients see
    """A broker group has no address for clients of a listener."""


class OutsideAddresses:
    """The addresses of every broker group for each listener, and the answers that use them."""

    def __init__(self) -> None:
        self.table: Table = {}
        self._answers: dict[tuple[str, int, bytes], bytes] = {}
        self._answers_bytes = 0

    def update(self, table: Table) -> None:
        """Replace the table."""
        self.table = table
        self._forget_answers()

    def refusal(self, request: RemotingCommand, listener: str) -> RemotingCommand | None:
        """Return the refusal of a request that clients of a listener may not make, None for other requests."""
        if request.code in _PLAIN or request.code in _TRANSLATED:
            return None
        return request.reply(
            ResponseCode.NO_PERMISSION,
            remark=f"request {request.code} is not served on the listener {listener}: use the name "
            "servers' own port to register brokers and to administer routes",
        )

    def translate(
        self, request: RemotingCommand, reply: RemotingCommand, listener: str
    ) -> RemotingCommand:
        """Return what a client of *listener* gets instead of *reply*; `refusal` has allowed the request."""
        translate = _TRANSLATED.get(request.code)
        if translate is None or reply.code != ResponseCode.SUCCESS or not reply.body:
            return reply
        key = (listener, request.code, reply.body)
        body = self._answers.get(key)
        if body is None:
            try:
                body = translate(reply.body, lambda name: self._address(listener, name))
            except (OutsideAddressMissing, ModelError, JsonError) as error:
                return request.reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
            if request.code in _KEPT:
                self._keep(key, body)
        return replace(reply, body=body)

    def _keep(self, key: tuple[str, int, bytes], body: bytes) -> None:
        size = len(key[2]) + len(body)
        if self._answers_bytes + size > ANSWERS_BYTES_MAX:
            self._forget_answers()
        if size <= ANSWERS_BYTES_MAX:
            self._answers[key] = body
            self._answers_bytes += size

    def _forget_answers(self) -> None:
        self._answers.clear()
        self._answers_bytes = 0

    def _address(self, listener: str, group: str) -> str:
        found = self.table.get(listener, {}).get(group)
        if found is None:
            raise OutsideAddressMissing(
                f"OutsideAddressMissing: the broker group {group[:255]} has no address for "
                f"clients of the listener {listener} yet; ask again, and see the condition "
                "ListenersReady of the Cluster"
            )
        return found


# -- answers with addresses --------------------------------------------------------------------------

_Lookup: TypeAlias = Callable[[str], str]


def _brokers(datas: Iterable[BrokerData], lookup: _Lookup) -> tuple[BrokerData, ...]:
    return tuple(
        replace(data, broker_addrs={MASTER_ID: lookup(data.broker_name)}) for data in datas
    )


def _route(body: bytes, lookup: _Lookup) -> bytes:
    route = TopicRouteData.from_json(body)
    brokers = _brokers(route.broker_datas, lookup)
    # Filter servers have internal addresses, and no client of the last ten years uses them.
    return replace(route, broker_datas=brokers, filter_server_table={}).to_json()


def _cluster_info(body: bytes, lookup: _Lookup) -> bytes:
    info = ClusterInfo.from_json(body)
    brokers = _brokers(info.broker_addr_table.values(), lookup)
    return replace(
        info, broker_addr_table=dict(zip(info.broker_addr_table, brokers, strict=True))
    ).to_json()


def _member_group(body: bytes, lookup: _Lookup) -> bytes:
    value = fastjson.loads(body)
    found = value.get("brokerMemberGroup") if isinstance(value, Mapping) else None
    data = BrokerData.from_json_value(found)
    if data.broker_addrs:
        data = _brokers([data], lookup)[0]
    return fastjson.dumps({"brokerMemberGroup": data.to_json_value()})


def _system_topics(body: bytes, lookup: _Lookup) -> bytes:
    return replace(TopicList.from_json(body), broker_addr=None).to_json()


_TRANSLATED: Final[Mapping[int, Callable[[bytes, _Lookup], bytes]]] = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC: _route,
    RequestCode.GET_BROKER_CLUSTER_INFO: _cluster_info,
    RequestCode.GET_BROKER_MEMBER_GROUP: _member_group,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: _system_topics,
}
