"""
The actions of a plan that are requests to brokers and name servers, the same for every backend.

Rule: a backend only supplies the addresses of raft groups, replicas and name servers, and the secrets. Every action
may be repeated.
"""

from collections.abc import Mapping
from typing import Final, Protocol, assert_never

from orderlymq_operator.brokers.admin import Admin, AdminError
from orderlymq_operator.plan.actions import (
    AbortExpansion,
    AddLearner,
    CreateTopic,
    DeleteConsumerGroup,
    DeleteOrderConfig,
    DeleteTopic,
    DeleteUser,
    FenceTopic,
    PromoteReplica,
    PublishTopic,
    PutOrderConfig,
    RemoteAction,
    RemoveReplica,
    SetConsumerGroup,
    SetUser,
    SwitchTopic,
    TransferLeadership,
    UpdateTopic,
)

# The change that a broker is asked for, by action.
_MEMBERSHIP_CHANGES: Final[Mapping[type, str]] = {
    AddLearner: "add-learner",
    PromoteReplica: "promote",
    RemoveReplica: "remove",
}


class Places(Protocol):
    """The addresses and secrets that a backend supplies."""

    def group_address(self, group: str) -> str:
        """Return the address of a raft group's leader.

        Raises:
            AdminError: there is no leader at present, or the leader has just not answered.
        """

    def replica_address(self, group: str, node: int) -> str:
        """Return the address at which the other replicas of a raft group reach replica *node*."""

    def name_server_addresses(self) -> list[str]:
        """Return the address of each name server.

        Raises:
            AdminError: one of them has just not answered.
        """

    def secret_of(self, user: str) -> str | None:
        """Return the current secret of a User; callers do not keep it."""


async def perform_remote(  # noqa: C901, PLR0912 - one per kind
    action: RemoteAction, admin: Admin, places: Places
) -> None:
    """Carry out one action.

    Raises:
        AdminError: a broker or name server refused or did not answer; try again later.
    """
    match action:
        case CreateTopic(topic, group, config) | UpdateTopic(topic, group, config):
            is_new = isinstance(action, CreateTopic)
            await admin.set_topic(places.group_address(group), topic, config, is_new=is_new)
        case AddLearner(group, node) | PromoteReplica(group, node) | RemoveReplica(group, node):
            address = places.replica_address(group, node)
            change = _MEMBERSHIP_CHANGES[type(action)]
            await admin.change_membership(places.group_address(group), change, node, address)
        case TransferLeadership(group, target):
            await admin.transfer_leadership(places.group_address(group), target)
        case DeleteTopic(topic, group):
            await admin.delete_topic(places.group_address(group), topic)
        case FenceTopic() | AbortExpansion() | SwitchTopic() | PublishTopic():
            await admin.change_queues(places.group_address(action.group), action)
        case SetConsumerGroup():
            await _set_group(action, admin, places)
        case DeleteConsumerGroup(name, group):
            await admin.delete_group(places.group_address(group), name)
        case SetUser(user, access_key, group, user_config):
            secret = places.secret_of(user)
            if secret is None:
                raise AdminError(f"the secret of User {user!r} can no longer be read")
            await admin.set_user(places.group_address(group), access_key, secret, user_config)
        case DeleteUser(access_key, group):
            await admin.delete_user(places.group_address(group), access_key)
        case PutOrderConfig(topic, value):
            for address in places.name_server_addresses():
                await admin.put_order_config(address, topic, value)
        case DeleteOrderConfig(topic):
            for address in places.name_server_addresses():
                await admin.delete_order_config(address, topic)
        case _:
            assert_never(action)


async def _set_group(action: SetConsumerGroup, admin: Admin, places: Places) -> None:
    if action.start_from != "Client":
        # Set offsets first, on all raft groups: a consumer group that exists somewhere is never placed behind the
        # last message again.
        addresses = [places.group_address(group) for group in (action.group, *action.also)]
        if action.start_from == "Latest":
            for address in addresses:
                await _check_unmade(action.consumer_group, admin, address)
        for address in addresses:
            await _seed(action, admin, address)
    address = places.group_address(action.group)
    await admin.set_group(address, action.consumer_group, action.config)


async def _check_unmade(name: str, admin: Admin, address: str) -> None:
    """Check that clients have not created the consumer group since it was planned.

    Moving an existing consumer group behind the last message would skip messages.

    Raises:
        AdminError: the consumer group exists; the next plan sets no start position.
    """
    if await admin.has_group(address, name):
        raise AdminError(
            f"{address} already has the consumer group {name}; the operator plans again"
        )


async def _seed(action: SetConsumerGroup, admin: Admin, address: str) -> None:
    latest = action.start_from == "Latest"
    topics = await admin.topics(address)
    for topic in action.seed:
        count = topics[topic].queues if topic in topics else 0
        for queue in range(count):
            await admin.seed_offset(address, action.consumer_group, topic, queue, latest=latest)
