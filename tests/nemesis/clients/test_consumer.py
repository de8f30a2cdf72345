"""A key of each producer fails now and then in the group by key, and the oracle holds its lane to the same order."""

from typing import Any

from orderlymq.oracle.verdict import Defect, Event, Kind, judge
from tests.nemesis.clients.consumer import POISON_TRIES, is_poison


def test_one_key_of_a_producer_fails_now_and_then_and_never_for_good() -> None:
    """Others are not concerned, whatever they are given beside it."""
    texts = [f"producer-sdk.1-{key}:{number}" for key in range(4) for number in range(5_000)]
    poison = [text for text in texts if is_poison(text, 0)]

    assert {text.rpartition(":")[0] for text in poison} == {"producer-sdk.1-0"}
    assert 150 < len(poison) < 350
    assert not any(is_poison(text, POISON_TRIES) for text in texts)


def event(at: int, kind: Kind, offset: int, attempt: int = -1) -> Event:
    """Return what is said about a message of the key k."""
    facts: dict[str, Any] = {
        "topic": "orders",
        "queue": "g:0",
        "key": "k",
        "message": f"k:{offset}",
    }
    if attempt >= 0:
        facts |= {"group": "by-key", "client": f"client-{attempt}"}
    return Event(at, kind, **facts, offset=offset, attempt=attempt)


def test_a_failed_message_is_followed_by_its_repeat_alone() -> None:
    """What overtakes it is found, although its listener has said that it is not done."""
    sent = [event(0, Kind.ACK, 0), event(1, Kind.ACK, 1)]
    failed = [event(10, Kind.DELIVER, 0, 1), event(11, Kind.FAILED, 0, 1)]
    repeat = [event(12, Kind.DELIVER, 0, 2), event(13, Kind.DONE, 0, 2)]
    following = [event(14, Kind.DELIVER, 1, 3), event(15, Kind.DONE, 1, 3)]

    assert judge([*sent, *failed, *repeat, *following]).kept
    found = judge([*sent, *failed, *following]).findings
    assert [each.defect for each in found] == [Defect.OVERTAKEN]
