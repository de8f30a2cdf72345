"""How much a consumer group has still to consume of a topic: ends of queues minus committed offsets."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from orderlymq_operator.demo.credentials import Credentials
from orderlymq_protocol.body.config import TopicConfigTable
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_runtime.remoting.client import RemotingError

_TIMEOUT_S: Final = 3.0
# More than any topic holds: what cannot be asked counts as not consumed.
UNKNOWN: Final = 1 << 62
NO_ADMISSION: Final = Credentials()

_Ask: TypeAlias = Callable[[str, RemotingCommand], Awaitable[RemotingCommand]]


async def backlog(
    addresses: Sequence[str], topic: str, group: str, credentials: Credentials = NO_ADMISSION
) -> int:
    """Return the number of messages of *topic* that *group* has not committed, `UNKNOWN` when no answer has it."""
    client = credentials.client()

    async def ask(address: str, command: RemotingCommand) -> RemotingCommand:
        return await client.invoke(address, credentials.sign(command), _TIMEOUT_S)

    try:
        return sum([await _of_group(ask, address, topic, group) for address in addresses])
    except RemotingError:
        return UNKNOWN
    finally:
        await client.close()


async def _of_group(ask: _Ask, address: str, topic: str, group: str) -> int:
    answer = await ask(address, request(RequestCode.GET_ALL_TOPIC_CONFIG))
    if answer.code != ResponseCode.SUCCESS:
        return UNKNOWN
    config = TopicConfigTable.from_json(answer.body).topic_config_table.get(topic)
    if config is None:
        return 0
    total = 0
    for queue in range(config.read_queue_nums):
        place = {"topic": topic, "queueId": str(queue)}
        end = await _offset(ask, address, RequestCode.GET_MAX_OFFSET, place)
        if end == 0:
            continue
        committed = await _offset(
            ask, address, RequestCode.QUERY_CONSUMER_OFFSET, {**place, "consumerGroup": group}
        )
        total += max(0, end - committed)
    return total


async def _offset(ask: _Ask, address: str, code: RequestCode, ext: dict[str, str]) -> int:
    """Return an offset; a group that has committed nothing is at 0."""
    answer = await ask(address, request(code, ext))
    return int(answer.ext["offset"]) if answer.code == ResponseCode.SUCCESS else 0
