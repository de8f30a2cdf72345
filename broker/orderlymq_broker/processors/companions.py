"""
What a family of requests may want besides its requests: to see appends, time, answers and endings.

The rule: a companion is called on the leader only, in the order of attachment, after the core's own
processors; it returns effects like any processor. Attached with ``BrokerCore.attach``; the first is
``administration.py``.
"""

from collections.abc import Sequence
from typing import Protocol

from orderlymq_broker.processors.effects import Effect, Now, Peer
from orderlymq_broker.state.records import Append
from orderlymq_protocol.frame.command import RemotingCommand


class Companion(Protocol):
    """Something that lives beside the handlers of a family of requests."""

    def appended(self, records: Sequence[Append]) -> None:
        """Take note of messages that were applied; on the path of every send."""

    def tick(self, now: Now) -> list[Effect]:
        """Do what is due."""

    def replied(self, response: RemotingCommand, peer: Peer, now: Now) -> list[Effect]:
        """Take a client's answer to a request that the broker sent it."""

    def closed(self, connection: int, now: Now) -> list[Effect]:
        """Learn that a connection is gone."""

    def ended(self) -> list[Effect]:
        """Learn that this replica leads no more."""
