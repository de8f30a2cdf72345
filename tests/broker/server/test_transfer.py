"""A planned move of leadership is answered with its real outcome."""

from types import SimpleNamespace
from typing import Any

import pytest

from orderlymq_broker.server.transfer import LeadershipTransfer
from orderlymq_broker.settings import RaftSettings
from orderlymq_raft import ProposalRefused
from orderlymq_raft.types import NodeId

TWO, THREE = NodeId(2), NodeId(3)


class Elected:
    """A raft group in which node 2 leads after each move."""

    leader = TWO

    async def move(self, **_: object) -> bool:
        return True


def transfer() -> LeadershipTransfer:
    node = SimpleNamespace(is_leader=True, round_trip_ticks=1)
    instance = SimpleNamespace(node=node, loop=None)
    settings = SimpleNamespace(raft=RaftSettings())
    parts: list[Any] = [settings, lambda: instance, Elected(), None, None]
    return LeadershipTransfer(*parts)


async def test_a_move_to_a_replica_is_done_only_when_that_one_leads() -> None:
    """Law: a move succeeds only if the wanted replica leads; another one may be elected meanwhile."""
    assert await transfer().move(TWO) == TWO
    with pytest.raises(ProposalRefused, match="node 2 leads now: it was elected instead of node 3"):
        await transfer().move(THREE)
