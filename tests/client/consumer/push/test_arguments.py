"""Arguments of producers and consumers with wrong types."""

from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from typing import Any

import pytest

from orderlymq import Consumer, Producer, ProducerSettings, ReceivedMessage, SettingError


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"ordered": "Key"}, "ordered is 'Key'; it must be False, True"),
        ({"ordered": "lanes"}, "'key' for key lanes"),
        ({"ordered": None}, "ordered is None"),
        ({"concurrency": "3"}, "concurrency is '3'"),
        ({"concurrency": 0}, "concurrency is 0"),
        ({"consume_from": 5}, "consume_from is 5"),
        ({"settings": ProducerSettings()}, "type ProducerSettings; pass ConsumerSettings"),
        ({"settings": {}}, "type dict; pass ConsumerSettings"),
        ({"client_settings": {"use_tls": True}}, "type dict; pass ClientSettings"),
        ({"name_servers": 9876}, "name_servers is 9876; write host:port"),
        ({"name_servers": ["a:1", 5]}, "a list of such texts"),
        ({"name_servers": "http://a:1"}, "'http://a:1' is a URL; write host:port"),
        ({"topics": 5}, "topics is 5"),
        ({"topics": [5]}, "the name of a topic or group is 5"),
        ({"topics": {"T": 5}}, "the subscription of T is 5"),
        ({"topics": {"T": "\ud800"}}, "the subscription of T cannot be encoded as UTF-8"),
    ],
)
async def test_arguments_of_other_types_are_refused_where_they_are_given(
    given: dict[str, Any], text: str
) -> None:
    """Law: a wrong type is refused by the constructor; else a consumer could consume by queue instead of by key."""
    with pytest.raises(SettingError, match=text):
        Consumer("G", **given)


def yielding(messages: Sequence[ReceivedMessage], _context: object) -> Iterator[None]:
    yield from (None for _ in messages)


async def yielding_too(
    messages: Sequence[ReceivedMessage], _context: object
) -> AsyncIterator[None]:
    for _ in messages:
        yield


@pytest.mark.parametrize("listener", [yielding, yielding_too, partial(yielding)])
async def test_a_listener_that_yields_is_refused_when_the_consumer_starts(listener: Any) -> None:
    """Law: a generator as a listener is refused at the start; it would never run,
    and each message would become a dead letter.
    """
    with pytest.raises(SettingError, match="the listener of G is a generator"):
        await Consumer("G", topics="T", listener=listener).start()


async def test_a_producer_refuses_the_settings_of_others() -> None:
    """Law: a producer refuses settings of another type, which would fail at the first send."""
    with pytest.raises(SettingError, match="type dict; pass ProducerSettings"):
        Producer("P", settings={})  # type: ignore[arg-type]  # as users err
