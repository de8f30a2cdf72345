"""
The queue lists that name servers keep of ordered topics, and the broker groups that those lists name.

Rule: a broker group that is away is not in the list of registered broker groups. But it has its part of ordered
topics and of all consumer groups, and returns with it. Code that changes something everywhere asks here which broker
groups are missing.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from orderlymq.connection.instance import ClientInstance, unless_missing, unless_refused
from orderlymq.connection.routes import NO_ROUTE, TopicRoute, parse_order_conf
from orderlymq.errors import BrokerUnreachable, SettingError
from orderlymq_protocol.body.catalogue import TopicRouteData
from orderlymq_protocol.body.config import KVTable
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import request
from orderlymq_protocol.header.catalogue import GetKVListByNamespaceHeader
from orderlymq_protocol.names import ORDER_NAMESPACE, is_dlq_topic, is_retry_topic, is_system_topic
from orderlymq_protocol.plurals import counted

# Routes to request at the same time: hundreds of topics, one after the other, take seconds.
_AT_ONCE: Final = 32


async def declarations(instance: ClientInstance, topic: str) -> list[dict[str, int]]:
    """Return the queue lists that the name servers have for *topic*, each by broker group.

    Raises:
        BrokerUnreachable: A name server does not answer.
    """
    tables = [
        await kv_table(instance, address, ORDER_NAMESPACE) for address in instance.name_servers
    ]
    lists = [parse_order_conf(table.get(topic)) for table in tables]
    return [each for each in lists if each]


async def named_groups(instance: ClientInstance, topics: Iterable[str]) -> set[str]:
    """Return the broker groups that declarations and the routes of *topics* name, according to the name servers.

    Raises:
        NameServersUnreachable: No name server answers.
    """
    found: set[str] = set()
    declared: set[str] = set()
    for address in instance.name_servers:
        asked = kv_table(instance, address, ORDER_NAMESPACE)
        try:
            # A name server's further listener returns no declarations.
            table = await unless_refused(asked, {}, ResponseCode.NO_PERMISSION)
        except BrokerUnreachable:
            continue
        for topic, text in table.items():
            declared.add(topic)
            found.update(parse_order_conf(text) or ())
    at_once = asyncio.Semaphore(_AT_ONCE)
    routed = (
        _routed(instance, topic, at_once)
        for topic in topics
        # Only routes of ordered topics name broker groups that are away.
        if not (
            topic in declared
            or is_system_topic(topic)
            or is_retry_topic(topic)
            or is_dlq_topic(topic)
        )
    )
    return found.union(*await asyncio.gather(*routed))


async def agreed_list(
    instance: ClientInstance,
    topic: str,
    wanted: Mapping[str, int],
    known: Iterable[str],
    *,
    spread: bool,
) -> dict[str, int]:
    """Return the queue list to declare: *wanted*, if that moves no key and leaves out no broker group.

    *known* are the broker groups that are registered. With *spread* the caller named no broker groups. Then the
    present list is meant if its sum is that of *wanted*.

    Raises:
        SettingError: The ordered topic has another list.
        BrokerUnreachable: A broker group of the topic is away, or a name server.
    """
    asked = instance.route(topic, refresh=True, keep=False)
    present = _present(await unless_missing(asked, NO_ROUTE))
    declared = await declarations(instance, topic)
    check_present({*present}.union(*declared), known)
    if spread and sum(present.values()) == sum(wanted.values()):
        wanted = present  # even if broker groups have joined since
    if present and present != wanted:
        raise SettingError(
            f"the ordered topic {topic} has {_described(present)}; keys would move to other queues if it "
            f"had {_described(wanted)}; create a new topic, or let a Topic resource expand it (DrainAndSwitch)"
        )
    for each in declared:
        if missing := sorted(each.keys() - wanted.keys()):
            raise SettingError(
                f"the name servers declare {_described(each)} of {topic}, and a list without {', '.join(missing)} "
                "would move its keys; delete the topic first, or name these broker groups as well"
            )
    return dict(wanted)


def check_present(named: Iterable[str], known: Iterable[str]) -> None:
    """Refuse a change that an absent broker group would miss.

    Raises:
        BrokerUnreachable: A broker group in *named* is not in *known*.
    """
    if absent := sorted({*named} - {*known}):
        raise BrokerUnreachable(
            f"nothing was changed, because the broker group {absent[0]} is not registered now and would miss "
            "the change; start it (`orderlymq status`), then try again. If it is lost for good, write the queue lists "
            f"without it (`AdminClient.put_kv`, `delete_kv`; namespace {ORDER_NAMESPACE}), then restart the name servers"
        )


def _present(route: TopicRoute) -> dict[str, int]:
    """Return the queues of an ordered topic by broker group; empty if the topic is not ordered."""
    counts: dict[str, int] = {}
    for queue in route.publish if route.is_ordered else ():
        counts[queue.broker_name] = counts.get(queue.broker_name, 0) + 1
    return counts


async def kv_table(instance: ClientInstance, address: str, namespace: str) -> Mapping[str, str]:
    """Return the values that a name server keeps under *namespace*."""
    ext = GetKVListByNamespaceHeader(namespace).to_ext()
    asked = instance.call(address, RequestCode.GET_KVLIST_BY_NAMESPACE, ext)
    answer = await unless_refused(asked, None, ResponseCode.QUERY_NOT_FOUND)
    return {} if answer is None else KVTable.from_json(answer.body).table


async def _routed(instance: ClientInstance, topic: str, at_once: asyncio.Semaphore) -> set[str]:
    """Return the broker groups of a route, without keeping it fresh from now on."""
    ext = {"topic": topic, "acceptStandardJsonOnly": "true"}
    async with at_once:
        answer = await instance.ask_name_server(request(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext))
    if answer.code != ResponseCode.SUCCESS:
        return set()  # deleted meanwhile
    data = TopicRouteData.from_json(answer.body)
    return {each.broker_name for each in data.broker_datas}


def _described(counts: Mapping[str, int]) -> str:
    listed = ", ".join(f"{count} on {name}" for name, count in sorted(counts.items()))
    return f"{counted(sum(counts.values()), 'queue')} ({listed})"
