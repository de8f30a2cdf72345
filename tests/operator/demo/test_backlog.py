import json

from orderlymq_operator.demo.backlog import backlog
from orderlymq_operator.demo.credentials import Credentials
from orderlymq_protocol.frame.command import RemotingCommand
from tests.operator.scripted import Answer, serving

_OFFSETS = {0: (10, 8), 1: (0, 0), 2: (7, 0)}  # The end and the committed offset of each queue.


def _answers(*, readable: bool = True) -> dict[int, Answer]:
    def progress(request: RemotingCommand) -> RemotingCommand:
        queues = _OFFSETS if request.ext["topic"] == "orders" else {}
        table = {
            json.dumps({"brokerName": "demo-0", "queueId": queue, "topic": "orders"}): {
                "brokerOffset": end,
                "consumerOffset": committed,
                "lastTimestamp": 0,
            }
            for queue, (end, committed) in queues.items()
        }
        return request.reply(body=json.dumps({"offsetTable": table, "consumeTps": 0}).encode())

    return {208: progress if readable else lambda request: request.reply(1)}


async def test_what_is_not_committed_is_counted() -> None:
    """Law: messages that are not committed are counted; a queue without an offset counts from its begin."""
    async with serving(_answers()) as (_, address):
        assert await backlog([address, address], "orders", "billing", Credentials()) == 2 * (2 + 7)
        assert await backlog([address], "unknown", "billing", Credentials()) == 0


async def test_what_cannot_be_asked_counts_as_not_consumed() -> None:
    """Law: an unreachable broker makes the count unknown and does not end the demo."""
    async with serving(_answers(readable=False)) as (_, address):
        assert await backlog([address], "orders", "billing", Credentials()) is None
    assert await backlog(["127.0.0.1:1"], "orders", "billing", Credentials()) is None
