"""The demo runs on an ordered topic only."""

import json

import pytest

from orderlymq_operator.demo.credentials import Credentials
from orderlymq_operator.demo.topiccheck import check_topic
from orderlymq_operator.local.errors import RefusedError
from tests.operator.scripted import Answer, serving

_NOBODY = "127.0.0.1:1"


def _having(*, order: bool) -> dict[int, Answer]:
    topic = {"topicName": "orders", "readQueueNums": 3, "writeQueueNums": 3, "order": order}
    table = json.dumps({"topicConfigTable": {"orders": topic}}).encode()
    return {21: lambda request: request.reply(body=table)}


async def test_an_ordered_topic_is_played_on() -> None:
    """Law: an ordered topic is accepted; a broker group that is away or refuses the question is waited for later."""
    async with serving(_having(order=True)) as (_, address):
        await check_topic([address, _NOBODY], "orders", Credentials())
        await check_topic([_NOBODY], "orders", Credentials())
        await check_topic([address, _NOBODY], "new", Credentials())


@pytest.mark.parametrize(
    ("topic", "why"), [("orders", "topic orders is not ordered"), ("new", "there is no topic new")]
)
async def test_a_topic_without_an_order_is_refused_before_anything_is_sent(
    topic: str, why: str
) -> None:
    """Law: a topic without order is refused before anything is sent, with what to do."""
    async with serving(_having(order=False)) as (_, address):
        with pytest.raises(RefusedError, match=why) as refused:
            await check_topic([address], topic, Credentials())

    assert "--topic" in str(refused.value)
    assert "spec.type Ordered" in str(refused.value)
