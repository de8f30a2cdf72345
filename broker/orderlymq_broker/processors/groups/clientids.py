"""
Ownership of client ids: which connection may speak for a client.

A client id is only a claim: a sender may write any id into a heartbeat or a lock request. The rules (ADR 22): an id
belongs to the account with which its memberships were made, and to the host whose connection used it last. Another
account is refused as long as the id is a member. Another host is refused as long as a connection of the first host is
open and was heard of recently, and while the id holds locks or lanes. Hosts are compared without ports, because
RocketMQ's clients use several connections and return over new ones. A client whose host has changed gets its id back
with a heartbeat that has the versions of its own subscriptions, which no other process has.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Final

from orderlymq_broker.core.clientsessions import Session, TooManyClients
from orderlymq_broker.core.effects import Caller, Now
from orderlymq_broker.core.requestcontext import Context, RequestRefused
from orderlymq_broker.state.groups.members import host_of
from orderlymq_broker.state.records import MemberSeen
from orderlymq_protocol.body.clients import ConsumerData
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.header.extensions import EXT_CLIENT_ID

# One request renews all locks of a client, so a few locks show its address; more would make a stranger's claim costly.
LOCKS_SEEN_MAX: Final = 64
_ADVICE: Final = "give each client its own instance name, or wait until the first one is gone"


def claim(
    context: Context,
    client_id: str,
    caller: Caller,
    now: Now,
    consumers: Sequence[ConsumerData] | None = None,
) -> Session:
    """Note that *client_id* uses the connection of *caller*, and that it was heard of now.

    *consumers* are the client's groups in a heartbeat, None for other requests.

    Raises:
        RequestRefused: the id belongs to another client (20516), or the connection has too many ids (1).
    """
    sessions = context.sessions
    if not _is_known(context, client_id, caller):
        check(context, client_id, caller, now, consumers)
        for other in sessions.of_client(client_id):
            if _is_foreign(other, client_id, caller):
                sessions.disown(client_id, other.caller.connection)
    try:
        session = sessions.identify(caller, client_id)
    except TooManyClients as refused:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(refused)) from refused
    session.seen_ms = now.monotonic_ms

    return session


def check(
    context: Context,
    client_id: str,
    caller: Caller,
    now: Now,
    consumers: Sequence[ConsumerData] | None = None,
) -> None:
    """Refuse a request that uses the client id of another client.

    Raises:
        RequestRefused: it does (20516); the remark names the owner of the id and the cure.
    """
    if _is_known(context, client_id, caller):
        return
    state = context.state
    members = [
        member
        for group in state.members.groups_of(client_id)
        if (member := state.members.get(group, client_id)) is not None
    ]
    accounts = {member.account for member in members} - {""}
    if context.settings.access.enable and accounts and caller.account not in accounts:
        _refuse(context, client_id, "another account")
    grace_ms = context.settings.timers.member_return_grace_ms
    for other in context.sessions.of_client(client_id):
        if _is_foreign(other, client_id, caller) and now.monotonic_ms - other.seen_ms <= grace_ms:
            context.note_duplicate(client_id, other.caller, caller)
            _refuse(context, client_id, f"a connection from {other.caller.host}")
    if _holds_from_elsewhere(context, client_id, caller, members) and not _is_same_process(
        members, consumers
    ):
        _refuse(context, client_id, "a client at another address that holds locks or lanes")


def check_named(context: Context, ext: Mapping[str, str], caller: Caller, now: Now) -> None:
    """Refuse a pull or commit that names the client id of another client.

    Raises:
        RequestRefused: it does (20516).
    """
    if EXT_CLIENT_ID in ext:
        check(context, ext[EXT_CLIENT_ID], caller, now)


def _is_known(context: Context, client_id: str, caller: Caller) -> bool:
    """Return whether the client has sent requests over this connection with this account."""
    session = context.sessions.get(caller.connection)

    return session is not None and session.client_ids.get(client_id) == caller.account


def _is_foreign(session: Session, client_id: str, caller: Caller) -> bool:
    return session.caller.host != caller.host or session.client_ids[client_id] != caller.account


def _holds_from_elsewhere(
    context: Context, client_id: str, caller: Caller, members: Collection[MemberSeen]
) -> bool:
    """Return whether the id holds locks or lanes, none of which were obtained from the host of *caller*."""
    state = context.state
    addresses = {lock.address for lock in islice(state.locks.of_client(client_id), LOCKS_SEEN_MAX)}
    if not addresses and not state.lanes.holds_any(client_id):
        return False
    addresses.update(member.address for member in members)

    return all(host_of(address) != caller.host for address in addresses)


def _is_same_process(
    members: Collection[MemberSeen], consumers: Sequence[ConsumerData] | None
) -> bool:
    """Return whether a heartbeat has the members' subscriptions with the same versions, to the millisecond."""
    said = {
        consumer.group_name: {
            subscription.topic: subscription.sub_version
            for subscription in consumer.subscription_data_set
        }
        for consumer in consumers or ()
    }
    known = [
        (
            member.group,
            {subscription.topic: subscription.version for subscription in member.subscriptions},
        )
        for member in members
        if member.group in said
    ]

    return any(any(versions.values()) for _, versions in known) and all(
        said[group] == versions for group, versions in known
    )


def _refuse(context: Context, client_id: str, owner: str) -> None:
    context.counters["client_ids_refused"] += 1
    raise RequestRefused(
        ResponseCode.ORDERLYMQ_CLIENT_ID_IN_USE,
        f"the client id {client_id} is in use by {owner}; {_ADVICE}",
    )
