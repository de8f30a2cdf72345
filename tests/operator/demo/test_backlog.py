import json

from orderlymq_operator.demo.backlog import UNKNOWN, backlog
from orderlymq_protocol.frame.command import RemotingCommand
from tests.operator.scripted import Answer, serving

_ENDS = {"0": 10, "1": 0, "2": 7}
_COMMITTED = {"0": 8}


def _answers(*, readable: bool = True) -> dict[int, Answer]:
    topic = {"topicName": "orders", "readQueueNums": 3, "writeQueueNums": 3}
    table = json.dumps({"topicConfigTable": {"orders": topic}}).encode()

    def committed(request: RemotingCommand) -> RemotingCommand:
        offset = _COMMITTED.get(request.ext["queueId"])
        return request.reply(22) if offset is None else request.reply(ext={"offset": str(offset)})

    return {
        21: lambda request: request.reply(body=table) if readable else request.reply(1),
        30: lambda request: request.reply(ext={"offset": str(_ENDS[request.ext["queueId"]])}),
        14: committed,
    }


async def test_what_is_not_committed_is_counted() -> None:
    """A queue without a committed offset counts from its beginning."""
    async with serving(_answers()) as (_, address):
        assert await backlog([address, address], "orders", "billing") == 2 * (2 + 7)
        assert await backlog([address], "unknown", "billing") == 0


async def test_what_cannot_be_asked_counts_as_not_consumed() -> None:
    """The demo must not end because a broker is away."""
    async with serving(_answers(readable=False)) as (_, address):
        assert await backlog([address], "orders", "billing") >= UNKNOWN
    assert await backlog(["127.0.0.1:1"], "orders", "billing") == UNKNOWN
