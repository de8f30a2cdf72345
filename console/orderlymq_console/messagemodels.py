"""
Models of messages for pages and `/api`: stored, waiting and dead messages.

Rules: those of `models`.
"""

from typing import Literal

from orderlymq_console.models import Figure, Listing, Model, Page, Trouble


class Body(Model):
    """The part of a message body that is shown.

    Attributes:
        form: text, json or hex.
        size_bytes: size of the whole body.
        at_least: the body has at least that many bytes, because no more of it was inflated.
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
        unreadable: why its body could not be inflated; it is then shown as it is stored.
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
    """Messages of one queue from an offset on; only those of one key if a key is given.

    Attributes:
        looked_at: number of messages that were read to find these.
        following: offset of the next page; None at the end of the queue.
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
    """Where a message stands for one consumer group.

    Attributes:
        state: one sentence.
        tries, last_error: of the group's listener, if they are reported.
        since_ms: when this state began, if that is known.
        event: what happened then, in a few words; empty if other fields say it.
        link: page with more about it.
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
    """One message, and where it stands for each consumer group of its topic."""

    row: MessageRow
    form: str
    head: int
    end: int
    groups: tuple[MessageGroup, ...]
    groups_left_out: int = 0
    groups_unknown: str = ""


class WaitingRow(Model):
    """Messages that one broker group holds back.

    Attributes:
        timers: messages that wait for a delivery time of their own.
        levels: messages that wait for a delay level, including retries of consumers.
        open: half messages without a decision; *oldest_ms* is when the oldest began.
        given_up: half messages about which the broker no longer asks a producer.
    """

    broker_group: str
    timers: Figure
    levels: Figure
    open: Figure
    oldest_ms: int | None
    given_up: Figure


class TransactionRow(Model):
    """The transactions of a producer group, and how many of its producers are online to decide them."""

    group: str
    open: Figure
    given_up: Figure
    producers: Figure


class WaitingPage(Page):
    """Messages that no consumer sees yet; *groups_left_out* is the number of producer groups that are not listed."""

    rows: tuple[WaitingRow, ...]
    groups: tuple[TransactionRow, ...]
    groups_left_out: Figure = Figure(value=0)
    troubles: tuple[Trouble, ...]


class DeadLetterRow(Model):
    """The dead letters of a consumer group, and the number of keys that it has parked behind one."""

    group: str
    topic: str
    letters: Figure
    parked_keys: Figure
    on_dead_letter: str


class DeadLettersPage(Listing):
    """Consumer groups with dead letters or parked keys."""

    rows: tuple[DeadLetterRow, ...]


Step = Literal["wait", "release", "redrive", "done", "unknown"]


class LetterKey(Model):
    """The dead letters of one key.

    Attributes:
        key: empty for messages without one.
        letters: zero if the key is parked and its letters are no longer kept; then there is no first letter either.
        tries: of the first letter.
        lag: messages that the consumer group has not consumed, some of which may have the key: in the queue of a parked key, otherwise in the topic.
        step: what to do next after the cause is repaired.
        step_unknown: why the step is not known.
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
    """The dead letters of one consumer group, by key.

    Attributes:
        total: letters that are kept; *looked_at* of them were read.
        passed: letters that were sent again and come before those that were read.
        unread: why there are more letters; empty if there are not.
    """

    group: str
    total: Figure
    looked_at: int
    passed: int = 0
    unread: str = ""
    rows: tuple[LetterKey, ...]
    keys_left_out: int = 0
