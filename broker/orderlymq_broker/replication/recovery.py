"""
Recovery mode: a replica whose disk was wiped must not vote as if it had its log, nor for itself.

A voter that comes back with an empty directory may have acknowledged entries that it no longer
has; its vote could then elect a leader without them. It cannot tell that from a group that begins.
The rule: it is recovering until a leader names a commit index and it has everything up to there; the
first leader of a group is recovering itself and names none until the group is bootstrapped. What the
core makes of it: `Node.set_recovering`. It says so whenever a connection is made, for the leader still
counts what it had acknowledged; and that leader may be one that this replica has helped to vote out,
so it counts nothing new either and names no commit index until the others have confirmed it
(`reads.proves_leadership_since_loss`). The mark is kept in the store, because a restart in the middle of
catching up must not end it.
"""

from collections.abc import Sequence
from dataclasses import replace

from orderlymq_broker.store.kv import Batch, Family, Reader
from orderlymq_broker.store.layout import META_RECOVERY
from orderlymq_raft import Append, Heartbeat, Message
from orderlymq_raft.types import Index


class Recovery:
    """Whether this replica may vote; *active* from an empty start until it has caught up."""

    def __init__(self, reader: Reader) -> None:
        self.active = reader.get(Family.META, META_RECOVERY) is not None

    @staticmethod
    def begin(batch: Batch) -> None:
        """Mark a replica that starts with nothing."""
        batch.put(Family.META, META_RECOVERY, b"\x01")

    def heard(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the messages that the core may see."""
        if not self.active:
            return messages
        return [_without_memory(each) for each in messages]

    def has_caught_up(self, messages: Sequence[Message], commit: Index) -> bool:
        """Return whether a recovering replica has all that a leader names, its log committed to *commit*."""
        if not self.active:
            return False
        commits = [message.commit for message in messages if isinstance(message, Append)]
        return bool(commits) and 0 < max(commits) <= commit

    def end(self, batch: Batch) -> None:
        """Vote from now on: the own log is complete, for instance because it was elected."""
        self.active = False
        batch.delete(Family.META, META_RECOVERY)


def _without_memory(message: Message) -> Message:
    # A leader that has not heard of the loss yet names a commit index that we had reached once.
    return replace(message, commit=Index(0)) if isinstance(message, Heartbeat) else message
