"""The plan of an action: a text for people, and its inputs."""

from dataclasses import dataclass

from orderlymq_console.messagemodels import MessageRow
from orderlymq_console.models import Model
from orderlymq_console.pages.letters import Letter


class QueueMove(Model):
    """How a reset moves a group in one queue; None where the group has no offset."""

    broker_group: str
    queue: int
    committed: int | None
    target: int
    effect: str


class Stand(Model):
    """Where a lane or a key that is released stood when it was shown."""

    broker_group: str
    queue: int
    offset: int


class Plan(Model):
    """Plan of an action.

    Attributes:
        action: retry, skip, release, redrive or reset.
        name: what the confirmation must name.
        form: what the confirmation sends, by field, so that the same plan is made again.
        effects: sentences, in the order in which things happen.
        stamp: where the thing stands; an action with another stamp is refused.
        consent: what must be agreed to beside the confirmation; empty where nothing must.
        following: the next messages that are affected.
        letters: of a redrive, what is sent.
        moves: of a reset, each queue.
        stands: of a release, each lane or key.
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
        """How much there is to do: letters, queues, lanes or keys."""
        return len(self.letters) + len(self.moves) + len(self.stands)


@dataclass(slots=True)
class Done:
    """How many parts of an action were done so far; it counts them also for an action that fails."""

    count: int = 0


def amount(number: int, what: str) -> str:
    """Return how many there are of what a plan touches, whose numbers may be long."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


class Changed(Exception):  # noqa: N818 - says what happened
    """The thing stands elsewhere than it was shown; nothing was done."""
