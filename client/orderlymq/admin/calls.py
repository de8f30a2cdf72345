"""
Calls of an administrator: to all broker groups at the same time, to any one, to a queue's leader, to name servers.

Rule: while a broker group is away, no broker group is asked for a change. `operations` has the requests.
"""

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Final, TypeVar

from orderlymq.admin.queuelists import check_present
from orderlymq.connection.instance import ClientInstance, no_leader, unless_refused
from orderlymq.errors import BrokerError, BrokerUnreachable
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.integers import read_integer

T = TypeVar("T")

# A client that shows all its threads, or consumes a message, may take some time.
_CLIENT_TIMEOUT_S: Final = 10.0


class AdminCalls:
    """Calls of brokers and name servers; the subclass supplies the client and the brokers."""

    _instance: ClientInstance

    async def brokers(self) -> dict[str, str]:
        """Return the leader's address of every broker group."""
        raise NotImplementedError

    async def absent_groups(self) -> list[str]:
        """Return the known broker groups that have no leader registered now."""
        raise NotImplementedError

    def _leaders(self, topic: str) -> dict[str, str]:
        """Return the leader's address of every broker group that has a part of a topic whose route is known."""
        raise NotImplementedError

    def _leader(self, broker_name: str) -> str:
        address = self._instance.routes.address(broker_name)
        if address is None:
            raise no_leader(broker_name)
        return address

    async def _number_of(
        self, queue: MessageQueue, code: RequestCode, ext: dict[str, str], name: str = "offset"
    ) -> int:
        """Return the number *name* from the answer of a queue's leader."""
        await self._instance.route(queue.topic, keep=False)
        address = self._leader(queue.broker_name)
        found = (await self._instance.call(address, code, ext)).ext.get(name, "")
        try:
            return read_integer(found)
        except ValueError as error:
            raise BrokerError(0, f"its answer has no {name}: {error}", address) from error

    async def _of_all(
        self,
        code: RequestCode,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        absent: ResponseCode | None = None,
    ) -> list[RemotingCommand]:
        """Ask the leader of every broker group as `_of_each` does; return the answers in order of their names."""
        leaders = await self.brokers()
        return [*(await self._of_each(leaders, code, ext, body, absent=absent)).values()]

    async def _of_knowing(
        self,
        code: RequestCode,
        ext: Mapping[str, str],
        leaders: Mapping[str, str] | None = None,
    ) -> list[RemotingCommand]:
        """Ask every broker group, or *leaders*, about a consumer group; return the answers of those that know it.

        Raises:
            BrokerError: None of them knows it (26); the text has similar names.
        """
        asked = await self.brokers() if leaders is None else leaders
        absent = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        found = await self._of_each(asked, code, ext, absent=absent)
        return [*(found or await self._of_each(asked, code, ext)).values()]

    async def _of_each(
        self,
        leaders: Mapping[str, str],
        code: RequestCode,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        absent: ResponseCode | None = None,
    ) -> dict[str, RemotingCommand]:
        """Ask some leaders at the same time; return their answers by broker group, without those that answer *absent*.

        Raises:
            OrderlyMQError: The error of the first leader that failed; the others were asked all the same.
        """
        calls = (self._instance.call(address, code, ext, body) for address in leaders.values())
        answers = await asyncio.gather(*calls, return_exceptions=True)
        found: dict[str, RemotingCommand] = {}
        for name, answer in zip(leaders, answers, strict=True):
            if not isinstance(answer, BaseException):
                found[name] = answer
            elif not (isinstance(answer, BrokerError) and answer.code == absent):
                raise answer
        return found

    async def _change_all(
        self, code: RequestCode, ext: Mapping[str, str] | None, body: bytes = b""
    ) -> None:
        """Ask every broker group for a change, but none if one is away, because that one would miss it."""
        check_present(await self.absent_groups(), ())
        await self._of_all(code, ext, body)

    async def _of_any_broker(self, code: RequestCode, ext: dict[str, str]) -> bytes:
        """Ask the broker groups in turn, because a client may be connected to only one of them.

        Raises:
            BrokerUnreachable: One does not answer, and no other one has the client.
            BrokerError: The answer of the last one.
        """
        failure: BrokerError | BrokerUnreachable | None = None
        for address in (await self.brokers()).values():
            try:
                answer = await self._instance.call(address, code, ext, timeout_s=_CLIENT_TIMEOUT_S)
            except BrokerUnreachable as error:
                failure = error
            except BrokerError as error:
                failure = failure if isinstance(failure, BrokerUnreachable) else error
            else:
                return answer.body
        raise failure or BrokerError(ResponseCode.CONSUMER_NOT_ONLINE, "there is no broker")

    async def _tell_name_servers(
        self, code: RequestCode, ext: dict[str, str], body: bytes = b""
    ) -> None:
        for address in self._instance.name_servers:
            await self._instance.call(address, code, ext, body)


async def unless_foreign(asked: Awaitable[T], otherwise: T) -> T:
    """Return an answer, or *otherwise* if the broker does not know the request (as RocketMQ's) or the group.

    Raises:
        BrokerError: The broker refused for another reason.
    """
    return await unless_refused(
        asked,
        otherwise,
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    )
