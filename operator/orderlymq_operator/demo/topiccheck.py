"""Check that a topic can show what the demo proves: only an ordered topic promises an order."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from orderlymq_operator.brokers.admin import AdminError
from orderlymq_operator.demo.credentials import Credentials
from orderlymq_operator.local.errors import RefusedError

_INSTEAD: Final = "name an ordered one with --topic, or declare one (kind Topic, spec.type Ordered) and run `orderlymq apply -f`"


async def check_topic(addresses: Sequence[str], topic: str, credentials: Credentials) -> None:
    """Check that a topic is ordered in every broker group that has it and answers.

    Raises:
        RefusedError: it is not ordered, or no broker group has it.
    """
    answers = []
    async with credentials.admin() as admin:
        for address in addresses:
            with suppress(AdminError):  # a broker group that does not answer may have the topic
                answers.append((await admin.topics(address)).get(topic))
    found = [config for config in answers if config is not None]
    if not all(config.order for config in found):
        raise RefusedError(
            f"topic {topic} is not ordered, so there is no order to prove; {_INSTEAD}"
        )
    if len(answers) == len(addresses) and not found:
        raise RefusedError(f"there is no topic {topic}; {_INSTEAD}")
