"""
A broker replica in this process that can be broken on purpose.

Rule: a fault shows a client only what a real fault may show: a replica that ends without notice, a lock whose holder
counts as dead, an answer that comes late.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from orderlymq_broker.app import EXIT_BROKEN_INVARIANT, BrokerProcess
from orderlymq_broker.core.bodylimits import read_heartbeat
from orderlymq_broker.core.effects import Caller
from orderlymq_broker.server.router import Service
from orderlymq_broker.settings import BrokerSettings
from orderlymq_protocol.body.declaration import ModelError
from orderlymq_protocol.body.fastjson import JsonError
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_testing.history import Recording


@dataclass(slots=True)
class Delay:
    """Requests with one of these codes are served *wait_s* later, the next *times* of them."""

    codes: tuple[int, ...]
    wait_s: float
    times: int


class _Interposed:
    """The service of a replica; its requests go through *handle* first."""

    def __init__(self, service: Service, handle: Callable[[RemotingCommand, Caller], None]) -> None:
        self.handle = handle
        self.refusal = service.refusal
        self.may_answer = service.may_answer
        self.request_confirmation = service.request_confirmation
        self.is_confirmed = service.is_confirmed
        self.connection_closed = service.connection_closed


class Replica(BrokerProcess):
    """One replica; all replicas of a cluster share *delays*, so that these outlast a change of leader.

    *recording* gets what administrators do and what consumer groups subscribe to.
    """

    def __init__(self, settings: BrokerSettings, delays: list[Delay], recording: Recording) -> None:
        super().__init__(settings)
        self._delays = delays
        self._recording = recording

    @property
    def serves(self) -> bool:
        """Whether this replica leads and clients can reach it."""
        instance = getattr(self, "instance", None)
        return instance is not None and bool(instance.loop.serving)

    def crash(self) -> None:
        """End without notice to anyone."""
        self._end(EXIT_BROKEN_INVARIANT)

    def service(self) -> Service:
        """Return the service that answers clients, late if a delay was set."""
        return _Interposed(super().service(), self._handle)

    def _handle(self, request: RemotingCommand, caller: Caller) -> None:
        self._record(request)
        delay = next((each for each in self._delays if request.code in each.codes), None)
        if delay is None:
            self.instance.loop.handle(request, caller)
            return
        delay.times -= 1
        if not delay.times:
            self._delays.remove(delay)
        asyncio.get_running_loop().call_later(delay.wait_s, self._late, request, caller)

    def _record(self, request: RemotingCommand) -> None:
        match request.code:
            case RequestCode.DELETE_TOPIC_IN_BROKER:
                self._recording.deleted(request.ext.get("topic", ""))
            case RequestCode.INVOKE_BROKER_TO_RESET_OFFSET:
                self._recording.reset(request.ext.get("group", ""), request.ext.get("topic", ""))
            case RequestCode.HEART_BEAT:
                with suppress(ModelError, JsonError):  # the broker refuses such a heartbeat
                    for each in read_heartbeat(request.body).consumer_data_set:
                        self._recording.subscribed(each.group_name, each.subscription_data_set)
            case _:
                pass

    def _late(self, request: RemotingCommand, caller: Caller) -> None:
        if self.serves:
            self.instance.loop.handle(request, caller)
