"""
Wrong signatures by address: a limit on the bytes of wrongly signed requests before large requests are refused.

The rule: a signature covers header and body, so a sender that knows an access key but no secret makes the event loop
read all of both. A connection without a valid signature so far may send large requests only while its address has not
sent too many wrong ones. Small requests are always checked, so a client behind the same address can prove itself with
its first heartbeat. Nothing here reads a clock. Addresses count as in ``core/quotas.py``.
"""

from typing import Final

from orderlymq_broker.core.bodylimits import BODY_SIZE_MAX, MESSAGE_CODES
from orderlymq_broker.core.effects import Caller
from orderlymq_broker.core.quotas import IDLE_MAX, Bucket, size_of
from orderlymq_broker.core.requestcontext import Context, RequestRefused
from orderlymq_broker.processors.send.checks import illegal
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.hosts import network_of

# About 3 ms of the event loop per second.
BYTES_PER_S: Final = 4 << 20


class WrongSignatures:
    """Addresses that sent large requests with wrong signatures; beyond the limit, the one quiet for longest is removed."""

    def __init__(self, context: Context) -> None:
        self._context = context
        # In the order of their latest wrong signature.
        self._buckets: dict[str, Bucket] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def check(self, request: RemotingCommand, caller: Caller, now_ms: int) -> None:
        """Refuse a request that is too large for its code, or that comes from an address with too many wrong signatures.

        Raises:
            RequestRefused: a message is too large (13), or the address has to wait (2).
        """
        body_size_max = self._context.settings.storage.body_size_max
        if request.code in MESSAGE_CODES and len(request.body) > body_size_max:
            raise illegal(self._context)
        if size_of(request) <= BODY_SIZE_MAX:
            return
        bucket = self._buckets.get(network_of(caller.host))
        if bucket is not None and not bucket.has_more_than(0, now_ms):
            remark = (
                f"large requests from {caller.host} had wrong signatures; first send a small "
                f"request with a right signature, or try again in {bucket.wait_ms(now_ms)} ms"
            )
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, remark)

    def count(self, request: RemotingCommand, caller: Caller, now_ms: int) -> bool:
        """Count a wrong signature; return whether it was that of a large request."""
        size = size_of(request)
        if size <= BODY_SIZE_MAX:
            return False
        network = network_of(caller.host)
        bucket = self._buckets.pop(network, None) or Bucket(BYTES_PER_S, now_ms)
        bucket.take(size)
        self._buckets[network] = bucket
        if len(self._buckets) > IDLE_MAX:
            del self._buckets[next(iter(self._buckets))]
        return True
