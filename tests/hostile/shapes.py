"""
Valid headers and bodies, made from their declarations, as the start of a mutation.

A header comes from its class in REQUEST_HEADERS, a body from a subclass of `JsonModel`; both are found by inspecting
the types, so that a new one needs nothing here. `PLAUSIBLE` gives members a content by their names, because a topic
that does not exist ends most handlers at their first line.
"""

import dataclasses
import functools
import random
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

import orderlymq_broker.server.assignment  # noqa: F401 - declares a body
import orderlymq_protocol.body.catalogue  # noqa: F401 - declares bodies
from orderlymq_protocol.body.declaration import JsonModel, wire_name_of
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.header.declaration import REQUEST_HEADERS, Header
from orderlymq_protocol.header.send import SEND_CODES, SendMessageHeader

_Item = TypeVar("_Item")

CLUSTER: Final = "shop"
BROKER: Final = "broker-a"
TOPICS: Final = ("orders", "payments", "%RETRY%billing", "%DLQ%billing", "TBW102", "unknown")
GROUPS: Final = ("billing", "shipping", "unknown")
CLIENTS: Final = ("192.0.2.1@101", "192.0.2.2@202")
QUEUES: Final = 4

# The end of a member's name in lower case -> its possible contents; the first match counts.
PLAUSIBLE: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("defaulttopic", ("TBW102", "orders")),
    ("topic", TOPICS),
    ("group", GROUPS),
    ("groupname", GROUPS),
    ("clientid", CLIENTS),
    ("clusterName".lower(), (CLUSTER,)),
    ("cluster", (CLUSTER,)),
    ("bname", (BROKER,)),
    ("brokername", (BROKER,)),
    ("strangername", ("broker-z",)),
    ("addr", ("127.0.0.1:10911", "192.0.2.1:10911")),
    ("address", ("127.0.0.1:10911",)),
    ("expressiontype", ("TAG", "SQL92", "TAG")),
    ("substring", ("*", "paid || shipped", "a > 5 AND b IS NOT NULL")),
    ("subscription", ("*", "paid || shipped", "a > 5 AND b IS NOT NULL")),
    ("messagemodel", ("CLUSTERING", "BROADCASTING")),
    ("consumetype", ("CONSUME_PASSIVELY", "CONSUME_ACTIVELY")),
    ("consumefromwhere", ("CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_FIRST_OFFSET")),
    (
        "properties",
        ("", "KEYS\x01k\x02TAGS\x01paid\x02UNIQ_KEY\x01U1", "DELAY\x013", "TRAN_MSG\x01true"),
    ),
    ("namespace", ("ORDER_TOPIC_CONFIG", "space")),
    ("action", ("set", "notify", "add-learner", "commit", "begin", "abort")),
    ("offsetmsgid", ("C0000264000029BF0000000000000000",)),
    ("perm", ("6", "2", "4")),
    ("queueid", tuple(map(str, range(QUEUES)))),
    ("queuenums", ("4", "8", "16")),
    ("offset", ("0", "1", "2")),
    ("maxmsgnums", ("32", "1")),
    ("sysflag", ("0", "1", "2", "4", "6", "8")),
    ("timestamp", ("0", "1700000000000")),
    ("suspendtimeoutmillis", ("0", "15000")),
    ("token", ("1", "2")),
    ("epoch", ("1", "2")),
    ("accesskey", ("weak-account", "new-account")),
    ("secretkey", ("a secret of theirs",)),
)
_NUMBERS: Final = ("0", "1", "2", "4", "16")
_LONG_FORM: Final = frozenset({RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE})


class FirstChoice(random.Random):
    """Takes the first of everything: a complete, simple body that every handler accepts."""

    def random(self) -> float:
        """Return the smallest number."""
        return 0.0

    def choice(self, seq: Sequence[_Item]) -> _Item:  # type: ignore[override]
        """Return the first item."""
        return seq[0]

    def randrange(self, *_: int) -> int:  # type: ignore[override]
        """Return the smallest number."""
        return 0


def plausible(rng: random.Random, name: str, kind: type) -> str:
    """Return what a well-behaved client might write into a field of this name and type."""
    return rng.choice(_choices(name, kind))


@functools.cache
def _choices(name: str, kind: type) -> tuple[str, ...]:
    lower = name.lower()
    for end, choices in PLAUSIBLE:
        if lower.endswith(end) and (kind is not int or choices[0].lstrip("-").isdigit()):
            return choices
    if kind is int:
        return _NUMBERS
    return ("true", "false") if kind is bool else ("a", "b1", "k")


def header_fields(code: int) -> dict[str, tuple[str, type]]:
    """Return the declared fields of a request: wire name -> the name of its content, and its type."""
    cls = REQUEST_HEADERS.get(code)
    if cls is None:
        return {}
    hints = get_type_hints(cls, include_extras=True)
    declared = [(field, wire_name_of(field)) for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    letters = code in SEND_CODES and code not in _LONG_FORM
    wires = _letters(cls) if letters else [wire for _, wire in declared]
    return {
        wire: (name, _plain(hints[field.name]))
        for (field, name), wire in zip(declared, wires, strict=True)
    }


def _letters(cls: type[Header]) -> list[str]:
    assert cls is SendMessageHeader
    return [chr(ord("a") + number) for number in range(len(dataclasses.fields(cls)))]


def _plain(hint: Any) -> type:
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = (each for each in get_args(hint) if each is not type(None))
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    assert isinstance(hint, type)
    return hint


@functools.cache
def models() -> dict[str, type[JsonModel]]:
    """Return every declared body by its name."""
    found: dict[str, type[JsonModel]] = {}

    def walk(cls: type[JsonModel]) -> None:
        for sub in cls.__subclasses__():
            # A base that is not a body itself declares no members.
            if hasattr(sub, "__dataclass_fields__"):
                found[sub.__name__] = sub
            walk(sub)

    walk(JsonModel)
    return dict(sorted(found.items()))


def sample(rng: random.Random, cls: type[Any]) -> dict[str, Any]:
    """Return the JSON object of a body of this class."""
    if cls is MessageQueue:
        return {
            "topic": rng.choice(TOPICS[:2]),
            "brokerName": BROKER,
            "queueId": rng.randrange(QUEUES),
        }
    return {wire: _member(rng, hint, wire) for wire, hint in _members(cls) if rng.random() < 0.95}


_MEMBERS: Final[dict[type[Any], tuple[tuple[str, Any], ...]]] = {}


def _members(cls: type[Any]) -> tuple[tuple[str, Any], ...]:
    found = _MEMBERS.get(cls)
    if found is None:
        hints = get_type_hints(cls)
        fields = dataclasses.fields(cls)
        found = _MEMBERS[cls] = tuple((wire_name_of(each), hints[each.name]) for each in fields)
    return found


def _member(rng: random.Random, hint: Any, name: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        (hint,) = (each for each in arguments if each is not type(None))
        return _member(rng, hint, name)
    if origin in (tuple, frozenset):
        return [_member(rng, arguments[0], name) for _ in range(rng.choice((1, 0, 1, 2, 4)))]
    if origin is Mapping:
        return {
            _key(rng, arguments[0], name): _member(rng, arguments[1], name)
            for _ in range(rng.choice((1, 0, 2)))
        }
    if hint in (int, str, bool):
        found = plausible(rng, name, hint)
        return found if hint is str else int(found) if hint is int else found == "true"
    if hint is float:
        return rng.choice((0.0, 1.5))
    return rng.choice((1, "a")) if hint is Any else sample(rng, hint)


def _key(rng: random.Random, hint: Any, name: str) -> str:
    if hint is int:
        return rng.choice(_NUMBERS)
    if hint is str:
        return rng.choice((*TOPICS[:2], *GROUPS[:1], "a"))
    return _json_queue(rng)


def _json_queue(rng: random.Random) -> str:
    queue = sample(rng, MessageQueue)
    return '{"brokerName":"%s","queueId":%d,"topic":"%s"}' % (  # noqa: UP031 - braces
        queue["brokerName"],
        queue["queueId"],
        queue["topic"],
    )


def places(found: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every place of a JSON value as its container and key."""
    stack = [found]
    while stack:
        container = stack.pop()
        keys = container if isinstance(container, dict) else range(len(container))
        for key in keys:
            yield container, key
            if isinstance(container[key], dict | list):
                stack.append(container[key])
