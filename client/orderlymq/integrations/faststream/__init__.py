"""
A FastStream broker: handlers get the messages of one key one after the other, in the order of their sends.

    broker = OrderlyMQBroker()

    @broker.subscriber("orders", group="billing")
    async def bill(order: Order) -> None: ...

Begin with `broker`; `testing` has FastStream's test broker, without a cluster. Missing: routers, `request`, `get_one`.
"""

try:
    import faststream  # noqa: F401 - to report what is missing before anything else fails
except ImportError as error:
    raise ImportError(f"{error}; install it with: pip install 'orderlymq[faststream]'") from error

from orderlymq.integrations.faststream.broker import OrderlyMQBroker
from orderlymq.integrations.faststream.messages import HandledMessage as OrderlyMQMessage
from orderlymq.integrations.faststream.messages import OrderlyMQResponse
from orderlymq.integrations.faststream.testing import TestOrderlyMQBroker

__all__ = ["OrderlyMQBroker", "OrderlyMQMessage", "OrderlyMQResponse", "TestOrderlyMQBroker"]
