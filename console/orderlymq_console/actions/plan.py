"""The plan of an action: a text for people, and its inputs."""

from dataclasses import dataclass

from orderlymq_console.messagemodels import MessageRow
from orderlymq_console.models import Model
from orderlymq_console.pages.letters import Letter


class QueueMove(Model):
    """How a reset moves a consumer group in one queue; *committed* is None if the group has no offset there."""

    broker_group: str
    queue: int
    committed: int | None
    target: int
    effect: str


class Stand(Model):
    """The place where a released lane or key stood when it was shown."""

    broker_group: str
    queue: int
    offset: int


class Plan(Model):
    """The plan of an action.

    Attributes:
        action: retry, skip, release, redrive or reset.
        name: what the confirmation must name.
        form: the fields that the confirmation sends, so that the same plan is made again.
        effects: sentences, in the order in which things happen.
        stamp: where the object stands; an action with another stamp is refused.
        consent: what must be agreed to in addition to the confirmation; empty if there is nothing.
        following: the next messages that are affected.
        letters: for a redrive, the letters that are sent.
        moves: for a reset, the move of each queue.
        stands: for a release, the place of each lane or key.
    """

    action: str
    title: str
    group: str
    topic: str
    name: str
    effects: tuple[str, ...]
    stamp: str
    form: dict[str, str]
    consent: str = ""
    following: tuple[MessageRow, ...] = ()
    letters: tuple[Letter, ...] = ()
    moves: tuple[QueueMove, ...] = ()
    stands: tuple[Stand, ...] = ()

    @property
    def parts(self) -> int:
        """The number of letters, queues, lanes or keys to handle."""
        return len(self.letters) + len(self.moves) + len(self.stands)


@dataclass(slots=True)
class Done:
    """The number of parts of an action that are done so far; it also counts if the action fails."""

    count: int = 0


def amount(number: int, what: str) -> str:
    """Return a count with its noun, with a comma between thousands."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


class Changed(Exception):  # noqa: N818 - says what happened
    """The object has changed since it was shown; the text says what was done, if anything."""
