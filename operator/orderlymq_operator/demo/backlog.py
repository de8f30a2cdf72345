"""How many messages of a topic a consumer group has still to consume: ends of queues minus committed offsets."""

from collections.abc import Sequence

from orderlymq_operator.brokers.admin import AdminError
from orderlymq_operator.demo.credentials import Credentials


async def backlog(
    addresses: Sequence[str], topic: str, group: str, credentials: Credentials
) -> int | None:
    """Return how many messages of *topic* the *group* has not committed; None if a broker group does not answer."""
    async with credentials.admin() as admin:
        try:
            return sum([await admin.backlog(address, group, topic) for address in addresses])
        except AdminError:
            return None
