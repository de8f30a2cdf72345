"""
The broker settings in a manifest's `config` that have RocketMQ's names.

Rule: a key has RocketMQ's name, default and unit. Milliseconds and bytes may be plain numbers, as in RocketMQ. A key
without an effect here is refused with the reason from `orderlymq_protocol.brokerkeys`, because its author expects an
effect.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from orderlymq_operator.resources.meta import Model, rule, rules
from orderlymq_operator.resources.quantities import Duration
from orderlymq_protocol.brokerkeys import BROKER_KEYS, Use, why_not

LOCK_KEY: Final = "rocketmq.broker.rebalance.lockMaxLiveTime"
# Keys whose values are plain milliseconds in RocketMQ, and times such as 6s here.
_MILLISECONDS: Final = (
    "transactionTimeOut",
    "transactionCheckInterval",
    "registerNameServerPeriod",
)
_BYTES: Final = ("maxMessageSize",)
_TAKEN: Final = frozenset({Use.LIVE, Use.START})

_LOCK: Final = BROKER_KEYS[LOCK_KEY]
_HOURS: Final = BROKER_KEYS["fileReservedTime"]
_TIMER: Final = BROKER_KEYS["timerMaxDelaySec"]
_QUEUES: Final = BROKER_KEYS["defaultTopicQueueNums"]
_PERIOD: Final = BROKER_KEYS["registerNameServerPeriod"]
_PERIOD_RANGE: Final = f"{_PERIOD.low // 1000}s to {_PERIOD.high // 1000}s"


class BrokerConfig(Model):
    """RocketMQ's configuration keys that have no field of their own elsewhere in a manifest."""

    reject_transaction_message: bool = Field(
        default=False, description="Refuse half messages with code 16."
    )
    default_topic_queue_nums: Annotated[int, Field(ge=_QUEUES.low, le=_QUEUES.high)] = Field(
        default=8, description="Largest number of queues of a topic that is created by a send."
    )
    broker_permission: Literal[2, 4, 6] = Field(
        default=6, description="6 allows sends and pulls, 4 only pulls, 2 only sends."
    )
    register_name_server_period: Duration = Field(
        default=Duration("30s"),
        description=f"Interval between two registrations with the name servers; {_PERIOD_RANGE}.",
        json_schema_extra=rules(
            rule(
                f"duration(self) >= duration('{_PERIOD.low}ms') && duration(self) <= duration('{_PERIOD.high}ms')",
                f"registerNameServerPeriod is {_PERIOD_RANGE}: otherwise name servers would drop a group that still runs",
            )
        ),
    )
    recall_message_enable: bool = Field(
        default=True, description="Let senders recall scheduled messages by their handles."
    )
    timer_wheel_enable: bool = Field(
        default=True,
        description="Accept scheduled messages, which are delivered at a time that the sender sets.",
    )
    timer_max_delay_sec: Annotated[int, Field(ge=_TIMER.low, le=_TIMER.high)] = Field(
        default=259_200, description="Longest delay of a scheduled message in seconds."
    )
    file_reserved_time: Annotated[int, Field(ge=_HOURS.low, le=_HOURS.high)] | None = Field(
        default=None, description="Hours that messages are kept; same as retention.time."
    )
    flush_disk_type: Literal["SYNC_FLUSH", "ASYNC_FLUSH"] | None = Field(
        default=None, description="Same as spec.flushDiskType."
    )
    lock_max_live_time: Annotated[int, Field(ge=_LOCK.low, le=_LOCK.high)] | None = Field(
        default=None,
        alias=LOCK_KEY,
        description="Milliseconds after which a holder that does not renew its locks loses its queues; same as lock.leaseSeconds.",
    )

    @model_validator(mode="before")
    @classmethod
    def _as_in_a_broker_conf(cls, data: Any) -> Any:
        """Accept plain numbers as RocketMQ does, and say why a key of RocketMQ is refused."""
        if not isinstance(data, dict):
            return data
        found = dict(data)
        for name in data:
            key = BROKER_KEYS.get(name)
            if key is not None and key.use not in _TAKEN:
                raise ValueError(
                    f"{name} is a key of RocketMQ that is not supported here: {why_not(name)}"
                )
        for name in _MILLISECONDS:
            if type(found.get(name)) is int:
                found[name] = f"{found[name]}ms"
        for name in _BYTES:
            if type(found.get(name)) is int:
                found[name] = str(found[name])

        return found

    @model_validator(mode="after")
    def _registers_in_time(self) -> "BrokerConfig":
        if not _PERIOD.low <= self.register_name_server_period.milliseconds <= _PERIOD.high:
            # With a longer period, name servers would consider a living broker group gone; RocketMQ has the same
            # limit.
            raise ValueError(
                f"registerNameServerPeriod {self.register_name_server_period} is not within {_PERIOD_RANGE}"
            )
        return self
