"""
Models of the page of a key, and of `/api`: where the key is, its newest messages, and its timeline.

Rules: those of `models`.
"""

from typing import Literal

from orderlymq_console.messagemodels import MessageGroup
from orderlymq_console.models import Figure, Model, Page, Pod


class KeyGroup(Model):
    """The state of a key in one consumer group."""

    group: str
    state: str
    holder: str | None
    holder_address: str | None
    holder_pod: Pod | None = None
    epoch: int | None
    committed: Figure
    waiting: Figure
    next_of_key: int | None
    ahead: int | None
    parked_since_ms: int | None = None


class KeyMessage(Model):
    """One of the key's newest messages; *groups* says where it stands for each consumer group that was asked about it."""

    offset: int
    message_id: str
    born_ms: int
    born_host: str
    stored_ms: int
    groups: tuple[MessageGroup, ...] = ()


class KeyEvent(Model):
    """An event in the life of a key.

    Attributes:
        source: where it comes from: the message or its copy (log), a client's trace, or what this console has seen.
        who: the producer group, consumer group or broker group that it is about; empty if it is about the message alone.
        offset: offset of the message in its queue; None if it is about the key or its queue.
    """

    at_ms: int
    source: Literal["log", "trace", "seen"]
    who: str = ""
    text: str
    offset: int | None = None
    link: str = ""


class KeyPage(Page):
    """Where a key is, and what every consumer group does with it; without a topic or a key, only the form that asks for them.

    Attributes:
        messages: the newest messages of the key, the newest first.
        events: its timeline, the newest first.
        unsure: what is not known of the timeline, and why.
    """

    topic: str = ""
    key: str = ""
    unknown: str = ""
    ordered: bool = False
    broker_group: str = ""
    queue: int = 0
    queues: int = 0
    head: int = 0
    end: int = 0
    groups: tuple[KeyGroup, ...] = ()
    groups_left_out: int = 0
    messages: tuple[KeyMessage, ...] = ()
    events: tuple[KeyEvent, ...] = ()
    unsure: tuple[str, ...] = ()
