"""
Tables of raft groups and name servers: topics, consumer groups, accounts, queue lists and routes.

Rule: a server that does not answer counts as one whose tables are not known. If a raft group refuses one table, such
as one too long for an answer, only that table is not known.
"""

from collections.abc import Awaitable, Collection, Mapping
from typing import Final, TypeAlias, TypeVar

from orderlymq_operator.brokers.admin import Admin, AdminError, SilentError
from orderlymq_operator.brokers.objectthread import beside_loop
from orderlymq_operator.plan.actions import (
    ConsumerGroupConfig,
    ObservedExpansion,
    ObservedNameServer,
    TopicConfig,
    UserConfig,
)
from orderlymq_operator.plan.expansion import expanding_topics
from orderlymq_operator.resources.kinds import Desired

T = TypeVar("T")

# The last item is the refusal, if a table is None although the raft group answers.
Tables: TypeAlias = tuple[
    Mapping[str, TopicConfig] | None,
    Mapping[str, ConsumerGroupConfig] | None,
    Mapping[str, UserConfig] | None,
    Mapping[str, ObservedExpansion],
    str,
]
SILENT: Final[Tables] = (None, None, None, {}, "")


async def read_tables(
    admin: Admin, address: str, desired: Desired, expanding: Collection[str]
) -> Tables:
    """Return the tables of a raft group: topics, consumer groups, accounts, progress of expansions, and a refusal.

    Accounts are read only if *desired* may concern them. A raft group reports by itself the expansions that are under
    way there, even of a topic that no manifest declares any more. A raft group where a topic does not expand is asked
    about it if another raft group has reported its expansion (*expanding*), even if the manifest allows none now.
    """
    users = bool(desired.users or desired.deleted_users)
    grows = await beside_loop(expanding_topics, desired.topics)
    asked, refused = {*grows, *expanding}, list[str]()

    async def unless_refused(table: Awaitable[T]) -> T | None:
        try:
            return await table
        except SilentError:
            raise
        except AdminError as error:
            refused.append(str(error))
            return None

    try:
        # Read expansions first: after that, no former operator can change what the next requests read.
        if (expansions := await unless_refused(admin.expansion(address, asked))) is None:
            return (None, None, None, {}, refused[0])
        topics = await unless_refused(admin.topics(address))
        groups = await unless_refused(admin.consumer_groups(address))
        accounts = await unless_refused(admin.users(address)) if users else {}
    except SilentError:
        return SILENT
    return topics, groups, accounts, expansions, refused[0] if refused else ""


async def read_name_server(
    admin: Admin, address: str, expanding: Collection[str], *, registered: bool
) -> ObservedNameServer:
    """Return the queue lists of a name server, its routes of *expanding* topics, and, if *registered*, its brokers."""
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
