"""
Answers to requests that are sent once their records are applied.

The rule: the answer is sent when the records are applied on this leader. If it loses leadership before, the
answer says that nothing changed. Sends have their own answers: ``processors/send/responses.py``.
"""

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import Final

from orderlymq_broker.core.effects import Caller, Effect, Now, Propose, Refusal
from orderlymq_broker.core.entrybuilder import cut
from orderlymq_broker.core.listings import Pieces
from orderlymq_broker.core.quotas import owner_of
from orderlymq_broker.core.requestcontext import (
    Context,
    Handler,
    RequestRefused,
    answer,
    answer_lost,
    unanswered,
)
from orderlymq_broker.state.records import (
    GroupChanged,
    Outcome,
    Record,
    Refused,
    TopicChanged,
)
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.names import GROUP_LENGTH_MAX

LOST: Final = "the leader changed before the change was stored, so nothing changed; send it again"
LOST_IN_PARTS: Final = "the leader changed before the whole change was stored; send it again"
NOT_LEADER: Final = (
    "Can't modify topic or subscription group from slave broker, please execute it from master "
    "broker: this replica does not lead group {group}; send it to {address}"
)

# How many topics and groups one answer names.
NAMES_SHOWN: Final = 8


def answer_list(
    context: Context,
    request: RemotingCommand,
    caller: Caller,
    pieces: Pieces,
    *,
    then: Callable[[bytes], list[Effect]] | None = None,
) -> list[Effect]:
    """Answer with a list that is written step by step, or with the reason why not; *then* may use the list otherwise."""
    kept = unanswered(request)

    def written(body: bytes | Refusal) -> list[Effect]:
        if isinstance(body, Refusal):
            return answer(kept, caller, body.code, remark=body.remark)
        return answer(kept, caller, body=body) if then is None else then(body)

    return context.listings.write(pieces, written, owner_of(caller), caller.connection)


def answer_when_applied(
    request: RemotingCommand,
    caller: Caller,
    records: Sequence[Record],
    *,
    then: Callable[[Sequence[Outcome], Now], list[Effect]] | None = None,
    ended: Callable[[], None] = lambda: None,
    lost_code: int = ResponseCode.SYSTEM_ERROR,
    in_parts: bool = False,
) -> list[Effect]:
    """Propose *records* and answer *request* when they are applied or lost.

    *then* makes the answer. Without it, the answer to a refused record is its reason (1), to others success.
    *ended* is called first, for every outcome. *lost_code* is the answer if another leader took over, in
    which case nothing is stored. *in_parts* is for many independent changes: they are split over several
    entries, and the answer comes with the last. If the leader changes between two parts, the earlier parts
    are stored.
    """
    request = unanswered(request)
    pieces = cut(records) if in_parts else [records]
    outcomes: list[Outcome] = []
    left = len(pieces)

    def applied(some: Sequence[Outcome], now: Now) -> list[Effect]:
        nonlocal left
        outcomes.extend(some)
        left -= 1
        return [] if left else whole(now)

    def whole(now: Now) -> list[Effect]:
        ended()
        if then is not None:
            return then(outcomes, now)
        refused = next((each for each in outcomes if isinstance(each, Refused)), None)
        if refused is not None:
            return answer(request, caller, ResponseCode.SYSTEM_ERROR, remark=refused.reason)
        return answer(request, caller)

    def lost(refusal: Refusal | None) -> list[Effect]:
        nonlocal left
        if left < 0:
            return []  # an earlier part was lost, and that was answered
        left = -len(pieces)
        ended()
        return answer_lost(request, caller, refusal, LOST_IN_PARTS if in_parts else LOST, lost_code)

    return [Propose(piece, applied, lost) for piece in pieces]


def change(
    context: Context,
    records: Sequence[Record],
    request: RemotingCommand,
    caller: Caller,
    *,
    done: Callable[[Now], list[Effect]] | None = None,
    ended: Callable[[], None] = lambda: None,
    in_parts: bool = False,
) -> list[Effect]:
    """Propose an administrator's change and answer when it is applied; *done* makes the answer instead of plain success.

    One of several topics or groups may be refused because of records that entered the log after the request
    was checked. The answer then names those that were changed.
    """
    request = unanswered(request)

    def then(outcomes: Sequence[Outcome], now: Now) -> list[Effect]:
        refused = next((each for each in outcomes if isinstance(each, Refused)), None)
        if refused is not None:
            changes = [each for each in outcomes if isinstance(each, TopicChanged | GroupChanged)]
            made = [each.name for each in changes if each.changed]
            more = f"; changed by this request: {', '.join(made[:NAMES_SHOWN])}" if made else ""
            more += f" and {len(made) - NAMES_SHOWN} more" if len(made) > NAMES_SHOWN else ""
            return answer(request, caller, ResponseCode.SYSTEM_ERROR, remark=refused.reason + more)
        context.counters["administrative_changes"] += 1
        return answer(request, caller) if done is None else done(now)

    return answer_when_applied(request, caller, records, then=then, ended=ended, in_parts=in_parts)


def check_unchanging(context: Context, kind: str, names: Sequence[str]) -> None:
    """Refuse a change of topics, groups or accounts if another change of them is not applied yet.

    Raises:
        RequestRefused: another change is pending, or the request names one twice (1).
    """
    busy = sorted({name for name in names if (kind, name) in context.entries.changing})
    if busy:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"{kind}[{', '.join(busy)}] is being changed; send it again"
        )
    if len(set(names)) < len(names):
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"the list names a {kind} twice; name each once"
        )


# Comparing takes some 20 us a name, on the event loop that also runs raft.
COMPARED_MAX: Final = 500


def raise_unknown_group(context: Context, group: str) -> None:
    """Refuse a consumer group that was never created, used or joined, most likely because of a typo.

    Raises:
        RequestRefused: 26, with similar names.
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
    hint = f"did you mean {' or '.join(near)}?" if near else "create it (orderlymq group set)"
    raise RequestRefused(
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        f"subscription group [{group}] does not exist; {hint}",
    )


def leader_only(context: Context, handler: Handler) -> Handler:
    """Wrap *handler*: the leader runs it, other replicas refuse and name the leader's address."""

    def handle(request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        if not context.leading:
            address = context.address_for(caller)
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                NOT_LEADER.format(group=context.settings.group, address=address),
            )
        return handler(request, caller, now)

    return handle
