"""
The promises between replicas that only their disks can make true: terms, votes, and what a log holds.

The rules (raft, sections 5.1 to 5.4): a vote and the term it is in are durable before they are sent; a log is
cut only where a leader of a newer term has something else. They are watched from outside, message by message.
"""

from collections import Counter
from typing import TYPE_CHECKING

from orderlymq_raft import AppendResponse, Message, Vote, VoteResponse

if TYPE_CHECKING:
    from tests.sim.broker.replica import Replica
    from tests.sim.invariants.safety import Laws


class Promises:
    """All that was promised in one run."""

    def __init__(self, laws: "Laws") -> None:
        self._laws = laws
        self._terms: Counter[str] = Counter()
        self._votes: dict[tuple[str, int], int] = {}

    def opened(self, replica: "Replica") -> None:
        """Check that a replica begins in no term before one that it has spoken in."""
        promised = self._terms[replica.name]
        self._laws.ensure(
            replica.node.term >= promised,
            "terms",
            f"{replica.name} begins in term {replica.node.term}, it has spoken in {promised}",
        )

    def said(self, replica: "Replica", message: Message) -> None:
        """Note what a replica promises: that it is in a term, and for whom it has voted there."""
        name = replica.name
        if isinstance(message, Vote | VoteResponse | AppendResponse):
            self._terms[name] = max(self._terms[name], message.term)
        if isinstance(message, VoteResponse) and message.granted:
            other = self._votes.setdefault((name, message.term), message.target)
            self._laws.ensure(
                other == message.target,
                "one vote",
                f"{name} votes for {other} and {message.target} in term {message.term}",
            )

    def forgotten(self, replica: "Replica") -> None:
        """Note that a replica has lost its disk: nothing that it said binds it."""
        self._terms.pop(replica.name, None)
        for key in [key for key in self._votes if key[0] == replica.name]:
            del self._votes[key]

    def tail_cut(self, replica: "Replica", index: int, old: int, new: int) -> None:
        """Check that a log is cut only where a leader of a newer term has something else.

        What that leader has may be older than what is cut: an entry that its own leader lost in a
        crash, with the entry of its next term at the same index, which nobody else has seen.
        """
        self._laws.ensure(
            old != new and old < replica.node.term,
            "log cut",
            f"{replica.name} in term {replica.node.term} writes entry {index} of term {new} again "
            f"over term {old}",
        )
