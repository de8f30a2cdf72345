"""
Administration of the broker itself: 25, 26, 306, 329.

The rules: only keys with a meaning here are shown, under RocketMQ's names; a change is taken only where
it can work at once, it holds for this leader until it ends, and the manifest is the place to make it
last; whatever cannot be changed so is refused by name, and then nothing is changed. Model:
AdminBrokerProcessor, BrokerConfig, MessageStoreConfig.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from orderlymq_broker.processors.context import Context, RequestRefused, answer
from orderlymq_broker.processors.effects import Effect, Now, Peer
from orderlymq_broker.processors.retention import RetentionService
from orderlymq_broker.settings import BrokerSettings
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.command import RemotingCommand
from orderlymq_protocol.model import DataVersion

HOUR_MS: Final = 3_600_000

# Timers of RocketMQ's flushing, which tools set by habit. Here what is acknowledged is stored, so
# every value is as good as kept.
INERT_KEYS: Final = frozenset(
    {
        "flushConsumerOffsetInterval",
        "flushConsumerOffsetHistoryInterval",
        "flushDelayOffsetInterval",
        "flushIntervalCommitLog",
        "flushIntervalConsumeQueue",
        "commitIntervalCommitLog",
    }
)

_REMARK: Final = (
    "holds until this leader ends; put it into the cluster's manifest to keep it after that"
)


@dataclass(frozen=True, slots=True)
class LiveKey:
    """A key that may be changed while the broker runs: how to read it, and the settings with it.

    Raises ValueError for a text that is no value of its.
    """

    change: Callable[[BrokerSettings, str], BrokerSettings]


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("write true or false")
    return text == "true"


def _hours(text: str) -> int:
    hours = int(text)
    if not 1 <= hours <= 24 * 365 * 100:
        raise ValueError("write a number of hours from 1 on")
    return hours * HOUR_MS


def _ratio(text: str) -> float:
    percent = int(text)
    if not 10 <= percent <= 99:
        raise ValueError("write a percentage from 10 to 99")
    return percent / 100


def _set_ratio(settings: BrokerSettings, text: str) -> BrokerSettings:
    refuse = _ratio(text)
    storage = settings.storage
    gap = max(0.0, storage.disk_refuse_ratio - storage.disk_resume_ratio)
    changed = msgspec.structs.replace(
        storage, disk_refuse_ratio=refuse, disk_resume_ratio=max(0.0, refuse - gap)
    )

    return msgspec.structs.replace(settings, storage=changed)


def _set_retention(settings: BrokerSettings, text: str) -> BrokerSettings:
    storage = msgspec.structs.replace(settings.storage, retention_ms=_hours(text))

    return msgspec.structs.replace(settings, storage=storage)


LIVE_KEYS: Final = {
    "autoCreateTopicEnable": LiveKey(
        lambda settings, text: msgspec.structs.replace(settings, auto_create_topic=_boolean(text))
    ),
    "autoCreateSubscriptionGroup": LiveKey(
        lambda settings, text: msgspec.structs.replace(settings, auto_create_group=_boolean(text))
    ),
    "fileReservedTime": LiveKey(_set_retention),
    "diskMaxUsedSpaceRatio": LiveKey(_set_ratio),
}


class ConfigAdministration:
    """Serves what administrators ask about the broker's settings."""

    def __init__(self, context: Context, retention: RetentionService) -> None:
        self._context = context
        self._retention = retention
        self._version = DataVersion()

    def show(self, request: RemotingCommand, peer: Peer, now: Now) -> list[Effect]:
        """Serve 26: the settings as Java properties, and their version."""
        lines = [f"{key}={value}\n" for key, value in sorted(self._properties().items())]
        version = self._version.to_json().decode()

        return answer(request, peer, ext={"version": version}, body="".join(lines).encode())

    def change(self, request: RemotingCommand, peer: Peer, now: Now) -> list[Effect]:
        """Serve 25: change settings, all of them or none."""
        wished = parse_properties(request.body)
        present = self._properties()
        settings = self._context.settings
        for key, text in wished.items():
            if key in LIVE_KEYS:
                try:
                    settings = LIVE_KEYS[key].change(settings, text)
                except ValueError as error:
                    raise _refusal(key, f"the value {text!r} does not fit: {error}") from error
            elif key not in INERT_KEYS and present.get(key) != text:
                raise _refusal(
                    key,
                    f"it cannot be changed while the broker runs; change the cluster's manifest. "
                    f"Changeable are {', '.join(sorted(LIVE_KEYS))}",
                )
        if settings == self._context.settings:
            return answer(request, peer)
        self._context.settings = settings
        self._version = DataVersion(self._version.counter + 1, now.wall_ms)

        return answer(request, peer, remark=_REMARK)

    def clean(self, request: RemotingCommand, peer: Peer, now: Now) -> list[Effect]:
        """Serve 306 and 329: look for messages past their time with the next tick."""
        self._retention.start(now)

        return answer(request, peer)

    def _properties(self) -> dict[str, str]:
        settings = self._context.settings
        storage, timers = settings.storage, settings.timers

        return {
            "aclEnable": _text(settings.access.enable),
            "autoCreateSubscriptionGroup": _text(settings.auto_create_group),
            "autoCreateTopicEnable": _text(settings.auto_create_topic),
            "brokerClusterName": settings.cluster,
            "brokerIP1": settings.address.host,
            "brokerId": "0",
            "brokerName": settings.group,
            "brokerPermission": "6",
            "brokerRole": "SYNC_MASTER",
            "diskMaxUsedSpaceRatio": str(round(storage.disk_refuse_ratio * 100)),
            "enableDLegerCommitLog": "true",
            "enablePropertyFilter": _text(settings.enable_property_filter),
            "fileReservedTime": str(storage.retention_ms // HOUR_MS),
            "flushDiskType": storage.flush,
            "listenPort": str(settings.address.port),
            "maxMessageSize": str(storage.body_size_max),
            "messageDelayLevel": timers.delay_levels,
            "namesrvAddr": ";".join(map(str, settings.name_servers)),
            "registerNameServerPeriod": str(timers.register_ms),
            "storePathRootDir": str(settings.data_dir),
        }


def parse_properties(body: bytes) -> dict[str, str]:
    """Read Java properties as tools write them: ``key=value`` lines.

    Raises:
        RequestRefused: the body is no UTF-8 text, or has no such line (1).
    """
    try:
        lines = body.decode().splitlines()
    except UnicodeDecodeError as error:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, "the body is not UTF-8 text") from error
    wished: dict[str, str] = {}
    for line in lines:
        key, found, value = line.strip().partition("=")
        if found and not key.startswith(("#", "!")):
            wished[key.strip()] = value.strip()
    if not wished:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, "string2Properties error: write lines of key=value"
        )

    return wished


def _refusal(key: str, problem: str) -> RequestRefused:
    return RequestRefused(ResponseCode.SYSTEM_ERROR, f"Can not update config {key}: {problem}")


def _text(value: bool) -> str:
    return "true" if value else "false"
