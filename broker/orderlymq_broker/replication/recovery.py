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
catching up must not end it. Its end is synced alone where nothing else is written: the group counts on this replica from
then on, and a restart must not begin it again.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from orderlymq_broker.store.kv import Batch, Family, Reader
from orderlymq_broker.store.layout import META_RECOVERY
from orderlymq_raft import Append, Heartbeat, Message
from orderlymq_raft.types import Index

# Entries that a replica may lack of what a leader names: what a group writes in a moment.
LACKED_MAX: Final = 1_000


class Recovery:
    """Whether this replica may vote; *active* from an empty start until it has caught up."""

    def __init__(self, reader: Reader) -> None:
        self.active = reader.get(Family.META, META_RECOVERY) is not None
        # The highest commit index that a leader has named.
        self._named = Index(0)
        # Once it has all that a leader names: up to where that must become durable.
        self._owed: Index | None = None
        self._is_ending = False

    @staticmethod
    def begin(batch: Batch) -> None:
        """Mark a replica that starts with nothing."""
        batch.put(Family.META, META_RECOVERY, b"\x01")

    def heard(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the messages that the core may see."""
        if not self.active:
            return messages
        return [_without_memory(each) for each in messages]

    def note_commit(self, messages: Sequence[Message], commit: Index) -> None:
        """Note the leader's commit index in *messages*, and whether a recovering replica has all of it, its log committed to *commit*."""
        commits = [message.commit for message in messages if isinstance(message, Append)]
        if not commits:
            return
        named = max(commits)
        self._named = max(self._named, named)
        if self.active and self._owed is None and 0 < named <= commit:
            self._owed = named

    def lacks(self, stable: Index, offered: Index) -> bool:
        """Return whether a follower whose log is durable up to *stable* cannot stand in for another one yet.

        It has lost its log and is not through, or lacks much of what its group has committed; a state that a leader has *offered* goes up
        to a committed entry that the log cannot bring any more.
        """
        return self.active or offered > stable or self._named - stable > LACKED_MAX

    def has_caught_up(self, stable: Index) -> bool:
        """Return whether a recovering replica has that on its disk, its log durable up to *stable*.

        Entries in memory alone are no reason to vote: the mark would be gone, and with a crash the entries as well.
        """
        is_whole = self._owed is not None and stable >= self._owed
        return self.active and is_whole and not self._is_ending

    def begin_end(self, batch: Batch) -> None:
        """Take the mark away; the recovery goes on until that is durable."""
        self._is_ending = True
        batch.delete(Family.META, META_RECOVERY)

    def end(self, batch: Batch) -> None:
        """Vote from now on: the own log is complete, for instance because it was elected."""
        self.active = False
        batch.delete(Family.META, META_RECOVERY)


def _without_memory(message: Message) -> Message:
    # A leader that has not heard of the loss yet names a commit index that we had reached once.
    return replace(message, commit=Index(0)) if isinstance(message, Heartbeat) else message
