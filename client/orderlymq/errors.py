"""
Errors of the SDK, named after what the caller can do next.

Rule: an error of a send says whether the message may have been stored. `SendRefused` is definite: the message is not
in the log and never will be. `SendUnknown` means that the message may be in the log. Sending the same `Message` object
again is safe on an ordered topic, because it keeps its unique key. The docs have a section for each class, and each
error carries the link to it.
"""

from typing import Any, ClassVar, Final, Literal

from orderlymq_protocol.body.messagequeue import MessageQueue

TROUBLESHOOTING: Final = "docs/reference/errors.md"


class OrderlyMQError(Exception):
    """The base class of every error that the SDK raises on purpose.

    Attributes:
        docs: page and section that say what to do; also a note in the traceback.
    """

    docs: ClassVar[str] = f"{TROUBLESHOOTING}#orderlymqerror"

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.__module__ == __name__:  # subclasses in other modules inherit their parent's section
            cls.docs = f"{TROUBLESHOOTING}#{cls.__name__.lower()}"

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.add_note(f"See {self.docs}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Let it be pickled, as between processes of a pool: its text differs from its arguments."""
        return _remade, (type(self), self.args), self.__dict__


def _remade(kind: type[OrderlyMQError], args: tuple[object, ...]) -> OrderlyMQError:
    made = kind.__new__(kind)
    made.args = args
    return made


class SettingError(OrderlyMQError, ValueError):
    """A setting, a name or an argument is not allowed; the text names it and the allowed values."""


class StateError(OrderlyMQError, RuntimeError):
    """The client is not in the state that the call needs; the text names the state."""


def cannot_start(name: str, state: str) -> StateError:
    """Return why a client that is not in the state CREATE_JUST cannot start; *name* is what users call it."""
    if state == "RUNNING":
        return StateError(f"{name} is started already ({state})")
    if state == "START_FAILED":
        return StateError(
            f"{name} is being started, or its start failed; create a new one ({state})"
        )
    return StateError(f"{name} is closed and cannot start again; create a new one ({state})")


class NameServersUnreachable(OrderlyMQError, ConnectionError):  # noqa: N818 - says what happened
    """No name server answered; check their addresses and that one of them runs."""


class BrokerUnreachable(OrderlyMQError, ConnectionError):  # noqa: N818 - says what happened
    """The broker group did not answer; it may be electing a leader: try again."""


class TopicNotFound(OrderlyMQError, LookupError):  # noqa: N818 - says what happened
    """No broker has the topic; create it (`orderlymq topic create`) or correct its name.

    Attributes:
        topic: its name, if it is known.
    """

    def __init__(self, message: str, *, topic: str = "") -> None:
        self.topic = topic
        super().__init__(message)


class BrokerError(OrderlyMQError):
    """A broker or a name server answered with an error.

    Attributes:
        code: the response code of the remoting protocol.
        remark: the broker's own words.
        address: the server that answered, ``host:port``.
    """

    def __init__(self, code: int, remark: str | None, address: str = "") -> None:
        self.code = code
        self.remark = remark or ""
        self.address = address
        super().__init__(f"code {code} from {address or 'the broker'}: {self.remark}")


class SendError(OrderlyMQError):
    """A send did not succeed; see the two subclasses for what is known about the message.

    Attributes:
        stored: ``no`` or ``unknown``.
        code: the last response code, or None when no broker answered.
        address: the broker that was asked last.
    """

    stored: Literal["no", "unknown"] = "unknown"

    def __init__(self, message: str, *, code: int | None = None, address: str = "") -> None:
        self.code = code
        self.address = address
        where = f" (broker {address})" if address else ""
        super().__init__(f"{message}{where}; stored: {self.stored}")


class SendRefused(SendError):  # noqa: N818 - says what happened
    """The message was not stored and never will be; correct the cause, then send it again."""

    stored = "no"


class SendUnknown(SendError):  # noqa: N818 - says what happened
    """No broker said whether the message was stored; send the same `Message` object again."""

    stored = "unknown"


class BodyInvalid(OrderlyMQError, ValueError):  # noqa: N818 - says what happened
    """A body, or a value for a body, is not of the type that the program expects; the text shows no content."""


class BodyUnreadable(OrderlyMQError, ValueError):  # noqa: N818 - says what happened
    """The body of a stored message cannot be inflated; a pull from the next offset skips it.

    Attributes:
        queue, offset: where the message is stored.
    """

    def __init__(self, queue: MessageQueue, offset: int, reason: str) -> None:
        self.queue = queue
        self.offset = offset
        super().__init__(
            f"the body of the message at offset {offset} of {queue} cannot be read: {reason}; "
            f"a pull from offset {offset + 1} on skips it"
        )


class ReplyTimeout(OrderlyMQError, TimeoutError):  # noqa: N818 - says what happened
    """No reply to a request arrived in time; the request may have been consumed all the same."""


class PullError(OrderlyMQError):
    """A pull did not succeed; the position is unchanged, so pull again."""
