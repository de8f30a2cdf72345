"""Whether a topic can show what the demo proves: only an ordered one promises an order."""

from collections.abc import Sequence
from typing import Final

from orderlymq_operator.demo.credentials import Credentials
from orderlymq_operator.local.errors import RefusedError
from orderlymq_protocol.body.config import TopicConfigTable
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import request
from orderlymq_runtime.remoting.client import RemotingError

_TIMEOUT_S: Final = 3.0
_INSTEAD: Final = "name an ordered one with --topic, or declare one (kind Topic, spec.type Ordered) and run `orderlymq apply -f`"


async def check_topic(addresses: Sequence[str], topic: str, credentials: Credentials) -> None:
    """Check that a topic is ordered at every broker group that has it and answers.

    Raises:
        RefusedError: It is not, or no group has it.
    """
    client = credentials.client()
    found = answered = 0
    try:
        for address in addresses:
            command = credentials.sign(request(RequestCode.GET_ALL_TOPIC_CONFIG))
            try:
                answer = await client.invoke(address, command, _TIMEOUT_S)
            except RemotingError:
                continue  # the demo waits for a leader
            if answer.code != ResponseCode.SUCCESS:
                continue
            answered += 1
            config = TopicConfigTable.from_json(answer.body).topic_config_table.get(topic)
            if config is None:
                continue
            found += 1
            if not config.order:
                raise RefusedError(
                    f"topic {topic} is not ordered, so there is no order to prove; {_INSTEAD}"
                )
    finally:
        await client.close()
    if answered == len(addresses) and not found:
        raise RefusedError(f"there is no topic {topic}; {_INSTEAD}")
