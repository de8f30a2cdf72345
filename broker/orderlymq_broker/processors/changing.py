"""
Answering an administrator's change when it has become true.

The rule: the answer leaves when the records are applied on this leader; when leadership is lost before,
the administrator is told that nothing changed. Used by the ``admin_*`` modules.
"""

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import Final

from orderlymq_broker.processors.context import (
    Context,
    Handler,
    RequestRefused,
    answer,
    answer_lost,
)
from orderlymq_broker.processors.effects import Effect, Now, Peer, Propose, Refusal
from orderlymq_broker.state.records import Outcome, Record
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.names import GROUP_LENGTH_MAX

LOST: Final = "the leader changed before the change was stored, so nothing changed; send it again"
NOT_LEADER: Final = (
    "Can't modify topic or subscription group from slave broker, please execute it from master "
    "broker: this replica does not lead group {group}; send it to {address}"
)


def propose(
    context: Context,
    records: Sequence[Record],
    request: RemotingCommand,
    peer: Peer,
    *,
    body: bytes = b"",
    remark: str | None = None,
    ended: Callable[[bool], list[Effect]] | None = None,
) -> Propose:
    """Return the proposal of *records*, answered with *body* and *remark* when applied.

    *ended* learns whether they were, and may add effects that go before the answer.
    """

    def after(is_applied: bool) -> list[Effect]:
        return ended(is_applied) if ended is not None else []

    def applied(_: Sequence[Outcome], __: Now) -> list[Effect]:
        context.counters["administrative_changes"] += 1
        return [*after(True), *answer(request, peer, body=body, remark=remark)]

    def lost(refusal: Refusal | None) -> list[Effect]:
        return [*after(False), *answer_lost(request, peer, refusal, LOST)]

    return Propose(records, applied=applied, lost=lost)


# Comparing takes some 20 us a name, on the loop that also runs raft.
COMPARED_MAX: Final = 500


def raise_unknown_group(context: Context, group: str) -> None:
    """Refuse what names a group that nobody ever made, used or joined: most likely a typo.

    Raises:
        RequestRefused: 26, with the names that come near.
    """
    state = context.state
    if (
        group in state.groups.by_name
        or state.offsets.of_group(group)
        or state.members.of_group(group)
    ):
        return
    near: list[str] = []
    if len(group) <= GROUP_LENGTH_MAX:
        near = get_close_matches(group, [*islice(state.groups.by_name, COMPARED_MAX)], n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else "create it with updateSubGroup"
    raise RequestRefused(
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        f"subscription group [{group}] does not exist; {hint}",
    )


def leader_only(context: Context, handler: Handler) -> Handler:
    """Return *handler* for the leader, and a refusal that names the leader's address for others."""

    def handle(request: RemotingCommand, peer: Peer, now: Now) -> list[Effect]:
        if not context.leading:
            settings = context.settings
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                NOT_LEADER.format(group=settings.group, address=settings.address),
            )
        return handler(request, peer, now)

    return handle
