"""How much a consumer group has still to consume of a topic: ends of queues minus committed offsets."""

from collections.abc import Sequence

from orderlymq_operator.brokers.admin import AdminError
from orderlymq_operator.demo.credentials import Credentials


async def backlog(
    addresses: Sequence[str], topic: str, group: str, credentials: Credentials
) -> int | None:
    """Return the number of messages of *topic* that *group* has not committed, None when no answer has it."""
    async with credentials.admin() as admin:
        try:
            return sum([await admin.backlog(address, group, topic) for address in addresses])
        except AdminError:
            return None
