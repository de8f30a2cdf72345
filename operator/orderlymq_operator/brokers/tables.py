"""
Tables of raft groups and name servers: topics, consumer groups, accounts, queue lists and routes.

Rule: a server that does not answer, or answers only in part, counts as one that knows nothing.
"""

from collections.abc import Collection, Mapping
from typing import Final, TypeAlias

from orderlymq_operator.brokers.admin import Admin, AdminError
from orderlymq_operator.brokers.objectthread import beside_loop
from orderlymq_operator.plan.actions import (
    GroupConfig,
    ObservedExpansion,
    ObservedNameServer,
    TopicConfig,
    UserConfig,
)
from orderlymq_operator.plan.expansion import expanding_topics
from orderlymq_operator.resources.kinds import Desired

Tables: TypeAlias = tuple[
    Mapping[str, TopicConfig] | None,
    Mapping[str, GroupConfig] | None,
    Mapping[str, UserConfig] | None,
    Mapping[str, ObservedExpansion],
]
SILENT: Final[Tables] = (None, None, None, {})


async def read_tables(
    admin: Admin, address: str, desired: Desired, expanding: Collection[str]
) -> Tables:
    """Return what a raft group knows: topics, consumer groups, accounts, and the progress of expansions.

    Accounts are read only where *desired* may concern them. Of expansions a raft group reports those under way by itself,
    also of a topic that no manifest has any more. One where a topic does not expand is asked about it, too, when another
    one has said that it does (*expanding*), whatever the manifest says by now.
    """
    users = bool(desired.users or desired.deleted_users)
    grows = await beside_loop(expanding_topics, desired.topics)
    asked = {*grows, *expanding}
    try:
        # First: what follows is what no former operator changes any more.
        expansions = await admin.expansion(address, asked)
        return (
            await admin.topics(address),
            await admin.consumer_groups(address),
            await admin.users(address) if users else {},
            expansions,
        )
    except AdminError:
        return SILENT


async def read_name_server(
    admin: Admin, address: str, expanding: Collection[str], *, registered: bool
) -> ObservedNameServer:
    """Return the queue lists of a name server, its routes of *expanding* topics, and who is *registered*."""
    try:
        order = await admin.order_config(address)
        brokers = await admin.registered(address) if registered else None
    except AdminError:
        return ObservedNameServer()
    try:
        routes = {name: await admin.route(address, name) for name in sorted(expanding)}
    except AdminError:
        routes = {}
    return ObservedNameServer(order, routes, brokers)
