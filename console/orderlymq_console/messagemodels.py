"""
Models of messages for pages and `/api`: stored, waiting, dead.

Rules: those of `models`.
"""

from typing import Literal

from orderlymq_console.models import Figure, Listing, Model, Page, Trouble


class Body(Model):
    """The shown part of a body.

    Attributes:
        form: text, json or hex.
        size_bytes: of the whole body.
        at_least: it has at least so many bytes; so much of it was inflated.
        cut: only its beginning is shown.
    """

    form: str
    text: str
    size_bytes: int
    at_least: bool = False
    cut: bool


class MessageRow(Model):
    """A stored message.

    Attributes:
        unreadable: why its body could not be inflated, and is shown as it is stored.
    """

    topic: str
    broker_group: str
    queue: int
    offset: int
    key: str | None
    tag: str | None
    keys: tuple[str, ...]
    message_id: str
    offset_message_id: str
    stored_ms: int
    born_ms: int
    born_host: str
    reconsume_times: int
    properties: dict[str, str]
    unreadable: str = ""
    body: Body


class MessagesPage(Page):
    """Messages of one queue, from an offset on; of one key if one is given.

    Attributes:
        looked_at: messages that were read to find these.
        following: offset to go on from; None at the end of the queue.
    """

    topic: str
    broker_group: str
    queue: int
    queues: tuple[str, ...]
    offset: int
    head: int
    end: int
    key: str = ""
    form: str = "auto"
    rows: tuple[MessageRow, ...]
    looked_at: int
    previous: int | None = None
    following: int | None = None


class MessageGroup(Model):
    """Where a message is for one consumer group.

    Attributes:
        state: in a sentence.
        tries, last_error: of its listener, as far as it is reported.
        since_ms: since when it is so, where that is known.
        event: what happened then, in a few words; empty where other fields say it.
        link: where to look further.
    """

    group: str
    state: str
    committed: Figure
    tries: int | None = None
    last_error: str = ""
    since_ms: int | None = None
    event: str = ""
    link: str = ""


class MessagePage(Page):
    """One message, and where it is for each group that consumes its topic."""

    row: MessageRow
    form: str
    head: int
    end: int
    groups: tuple[MessageGroup, ...]
    groups_left_out: int = 0
    groups_unknown: str = ""


class WaitingRow(Model):
    """Messages that one broker group keeps back.

    Attributes:
        timers: messages that wait for a time of their own.
        levels: messages that wait for a delay level; retries of consumers are among them.
        open: half messages that nobody has ended; *oldest_ms* is when the oldest began.
        given_up: half messages about which no producer is asked any more.
    """

    broker_group: str
    timers: Figure
    levels: Figure
    open: Figure
    oldest_ms: int | None
    given_up: Figure


class TransactionRow(Model):
    """The transactions of a producer group, and how many producers are online to decide them."""

    group: str
    open: Figure
    given_up: Figure
    producers: Figure


class WaitingPage(Page):
    """Messages that no consumer sees yet; *groups_left_out* counts further producer groups."""

    rows: tuple[WaitingRow, ...]
    groups: tuple[TransactionRow, ...]
    groups_left_out: Figure = Figure(value=0)
    troubles: tuple[Trouble, ...]


class DeadLetterRow(Model):
    """The dead letters of a group, and the keys that it has parked behind one."""

    group: str
    topic: str
    letters: Figure
    parked_keys: Figure
    on_dead_letter: str


class DeadLettersPage(Listing):
    """Groups with dead letters."""

    rows: tuple[DeadLetterRow, ...]


Step = Literal["wait", "release", "redrive", "done", "unknown"]


class LetterKey(Model):
    """The dead letters of one key.

    Attributes:
        key: empty for messages without one.
        letters: none where the key is parked and its letters are not kept any more; then there is no first one either.
        tries: of the first letter.
        lag: messages that the group has not consumed, some of which may be of the key: of a parked key in its queue, else in the topic.
        step: what is to be done next, when the cause is repaired.
        step_unknown: why that is not known.
    """

    topic: str
    key: str
    letters: Figure
    first_broker_group: str | None
    first_queue: int | None
    first_offset: int | None
    first_stored_ms: int | None
    tries: int | None
    parked_since_ms: int | None
    lag: Figure
    step: Step
    step_unknown: str = ""


class LettersPage(Page):
    """The dead letters of one group, by key.

    Attributes:
        total: that are kept; *looked_at* of them were read.
        passed: that were sent again and stand before those that were read.
        unread: why there are more; empty when there are not.
    """

    group: str
    total: Figure
    looked_at: int
    passed: int = 0
    unread: str = ""
    rows: tuple[LetterKey, ...]
    keys_left_out: int = 0
