"""How much a consumer group has still to consume of a topic: ends of queues minus committed offsets."""

from collections.abc import Sequence
from typing import Final

from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.command import request
from orderlymq_protocol.configbodies import TopicConfigTable
from orderlymq_runtime.client import RemotingClient, RemotingError

_TIMEOUT_S: Final = 3.0
# More than any topic holds: what cannot be asked counts as not consumed.
UNKNOWN: Final = 1 << 62


async def backlog(addresses: Sequence[str], topic: str, group: str) -> int:
    """Return the number of messages of *topic* that *group* has not committed, `UNKNOWN` when nobody can tell."""
    client = RemotingClient()
    try:
        return sum([await _of_group(client, address, topic, group) for address in addresses])
    except RemotingError:
        return UNKNOWN
    finally:
        await client.close()


async def _of_group(client: RemotingClient, address: str, topic: str, group: str) -> int:
    answer = await client.invoke(address, request(RequestCode.GET_ALL_TOPIC_CONFIG), _TIMEOUT_S)
    if answer.code != ResponseCode.SUCCESS:
        return UNKNOWN
    config = TopicConfigTable.from_json(answer.body).topic_config_table.get(topic)
    if config is None:
        return 0
    total = 0
    for queue in range(config.read_queue_nums):
        place = {"topic": topic, "queueId": str(queue)}
        end = await _offset(client, address, RequestCode.GET_MAX_OFFSET, place)
        if end == 0:
            continue
        committed = await _offset(
            client, address, RequestCode.QUERY_CONSUMER_OFFSET, {**place, "consumerGroup": group}
        )
        total += max(0, end - committed)
    return total


async def _offset(
    client: RemotingClient, address: str, code: RequestCode, ext: dict[str, str]
) -> int:
    """Return an offset; a group that has committed nothing is at 0."""
    answer = await client.invoke(address, request(code, ext), _TIMEOUT_S)
    return int(answer.ext["offset"]) if answer.code == ResponseCode.SUCCESS else 0
