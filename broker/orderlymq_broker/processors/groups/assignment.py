"""
Operators' decisions about the queues of a consumer group (20507), and the facts for them (20508).

The rules: a decision is a record under the operator's token. When it is applied, its group is told to rebalance. Each
member is shown with its own subscriptions, because differing subscriptions are the problem to find.
``strategies.py`` computes the answer to a member that asks for its queues.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any, Final

from orderlymq_broker.core.effects import Caller, Effect, Now
from orderlymq_broker.core.listings import array
from orderlymq_broker.core.operators import check_token
from orderlymq_broker.core.requestcontext import Context, RequestRefused, answer
from orderlymq_broker.core.responses import answer_list, answer_when_applied
from orderlymq_broker.processors.groups.locks import check_client
from orderlymq_broker.state.groups.members import since_ms, size_of
from orderlymq_broker.state.records import AssignmentSet, MemberSeen
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.integers import INT32_MAX

# The same limit as for the queues of a topic; a row with so many takes about 100 KiB.
OWNERS_MAX: Final = 16_384
# The bytes of a member that take as much work as one row of a list; a heartbeat may be 256 KiB long.
_PIECE_SIZE: Final = 4 << 10


class AssignmentProcessor:
    """Serves operators that assign queues.

    Args:
        notify: tells the members of groups to rebalance.
    """

    def __init__(self, context: Context, notify: Callable[[Sequence[str]], list[Effect]]) -> None:
        self._context = context
        self._notify = notify

    def change(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 20507: set an assignment (*action* set), or only tell the group to rebalance (notify)."""
        token = check_token(self._context, request.ext, now)
        group = request.ext.get("consumerGroup", "")
        check_client("operator", group)
        if request.ext.get("action", "set") == "notify":
            self._context.counters["rebalances_requested"] += 1
            return [*self._notify([group]), *answer(request, caller)]
        record = AssignmentSet(group, request.ext.get("topic", ""), _owners(request.body), token)

        return answer_when_applied(request, caller, [record])

    def members(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 20508: the members of a group and the assignment of its queues; without a group, all members."""
        if "consumerGroup" not in request.ext:
            return answer_list(self._context, request, caller, array("members", self._everybody()))
        group = request.ext["consumerGroup"]
        state = self._context.state

        def others() -> dict[str, Any]:
            owned = state.assignments.of_group(group).items()
            return {
                "consumerGroup": group,
                "ordered": state.is_ordered(group),
                "assignments": {
                    topic: [list(owner) for owner in owners] for topic, owners in owned
                },
            }

        return answer_list(
            self._context, request, caller, array("members", self._members_of(group), others)
        )

    def _members_of(self, group: str) -> Iterator[dict[str, Any] | None]:
        """Yield the members of a group in their shown form, and Nones for the work of long ones."""
        found = self._context.state.members.of_group(group)
        for client_id in sorted(found):
            member = found.get(client_id)
            if member is not None:
                yield _shown(member)
                yield from repeat(None, size_of(member) // _PIECE_SIZE)

    def _everybody(self) -> Iterator[tuple[str, str]]:
        """Yield client id and address of each member of each group."""
        table = self._context.state.members
        for group in sorted(table.groups()):
            for client_id, member in sorted(table.of_group(group).items()):
                yield client_id, member.address


def _owners(body: bytes) -> tuple[tuple[str, int, str], ...]:
    found = fastjson.loads(body) if body else []
    if not isinstance(found, list) or len(found) > OWNERS_MAX:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"the body must be a list of at most {OWNERS_MAX} owners"
        )
    owners = []
    for each in found:
        match each:
            # JSON's true is an int in Python.
            case [str(broker), int(queue), str(client)] if (
                client and type(queue) is int and 0 <= queue <= INT32_MAX
            ):
                owners.append((broker, queue, client))
            case _:
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR,
                    f"{each!r} is not an owner; write [broker name, queue, client id]",
                )

    return tuple(sorted(owners))


def _shown(member: MemberSeen) -> dict[str, Any]:
    return {
        "clientId": member.client_id,
        "address": member.address,
        "language": member.language,
        "version": member.version,
        "messageModel": member.message_model,
        "sinceMillis": since_ms(member),
        "subscriptions": [
            [subscription.topic, subscription.expression, subscription.expression_type]
            for subscription in member.subscriptions
        ],
    }
