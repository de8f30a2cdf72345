"""
Server-side assignment (400): which queues a member of a group takes, computed for clients that ask.

The rules: the same assignment as the clients' own strategies give, for the same sorted lists, so that
members which ask and members which compute for themselves agree; the queues of a topic stand on
several groups, so they come from the name servers and not from this group's table. Which client may
consume an ordered queue is still decided by its lock alone. The route is fetched by ``server/assignment.py``.
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
    """The request asks for an assignment that is not served; the text says which are."""


@dataclass(frozen=True, slots=True)
class AssignmentRequest(JsonModel):
    """Body of 400."""

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
    """Return the queues of the member that asks; None, which is no result, while it is not known as a member.

    *members* says since when each has been there. What an operator has decided (*decided*) goes
    before the strategy that the client names.

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
            f"the strategy {wish.strategy_name!r} is not served by brokers; use one of "
            f"{', '.join(STRATEGIES)}, or let clients rebalance for themselves"
        )
    names = sorted(members)

    return strategy(ordered, names.index(wish.client_id), len(names))


def assignment_body(queues: Sequence[MessageQueue] | None) -> bytes:
    """Return the body of the answer; pulls are the only way of delivery here.

    RocketMQ 5 takes null for no result, keeps its queues and asks again. On an empty list it drops them all; after an
    error in its first answer it never asks again and divides for itself, without what an operator decides.
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
