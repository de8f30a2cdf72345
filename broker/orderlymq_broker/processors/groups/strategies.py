"""
Server-side assignment (400): computes the queues of a group's member for clients that ask.

The rules: the result is that of the clients' own strategies for the same sorted lists. So members that ask and
members that compute for themselves agree. The queues of a topic are in several broker groups, so they come from the
name servers and not from this broker group's table. The lock alone still decides which client may consume an ordered
queue. ``server/assignment.py`` fetches the route.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from orderlymq_broker.state.groups.assignment import QueuePlace, full_assignment
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.body.clients import BROADCASTING
from orderlymq_protocol.body.declaration import JsonModel
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.shares import averagely, by_circle

Strategy = Callable[[Sequence[MessageQueue], int, int], list[MessageQueue]]


class AssignmentError(ValueError):
    """The request asks for a strategy that is not served; the text lists those that are."""


@dataclass(frozen=True, slots=True)
class AssignmentRequest(JsonModel):
    """The body of 400."""

    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str = "AVG"
    message_model: str = "CLUSTERING"


STRATEGIES: Final[dict[str, Strategy]] = {"AVG": averagely, "AVG_BY_CIRCLE": by_circle}


def assign(
    wish: AssignmentRequest,
    queues: Collection[MessageQueue],
    members: Mapping[str, int],
    decided: Mapping[QueuePlace, str] | None = None,
) -> list[MessageQueue] | None:
    """Return the queues of the member that asks, or None, which means no result, if it is not known as a member.

    *members* maps each member to the time since when it is one. The operator's decision (*decided*) takes precedence
    over the strategy that the client names.

    Raises:
        AssignmentError: the strategy is not known here.
    """
    ordered = sorted(queues)
    if wish.message_model == BROADCASTING:
        return ordered
    if wish.client_id not in members:
        return None
    if decided is not None:
        places = [(queue.broker_name, queue.queue_id) for queue in ordered]
        owners = full_assignment(decided, places, members)
        mine = {place for place, owner in owners.items() if owner == wish.client_id}
        return [queue for queue in ordered if (queue.broker_name, queue.queue_id) in mine]
    strategy = STRATEGIES.get(wish.strategy_name)
    if strategy is None:
        raise AssignmentError(
            f"brokers do not serve the strategy {wish.strategy_name!r}; use one of "
            f"{', '.join(STRATEGIES)}, or let the clients rebalance themselves"
        )
    names = sorted(members)

    return strategy(ordered, names.index(wish.client_id), len(names))


def assignment_body(queues: Sequence[MessageQueue] | None) -> bytes:
    """Return the body of the answer; messages are delivered only by pulls.

    For null, which means no result, RocketMQ 5 keeps its queues and asks again. For an empty list it drops all its
    queues. After an error in the first answer it never asks again and computes for itself, without the operator's
    decision.
    """
    found = (
        None
        if queues is None
        else [
            {"attachments": None, "messageQueue": queue.to_json_value(), "mode": "PULL"}
            for queue in queues
        ]
    )

    return fastjson.dumps({"messageQueueAssignments": found})
