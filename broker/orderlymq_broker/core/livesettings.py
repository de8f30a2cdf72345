"""
Settings that may change while the broker runs: converts between RocketMQ's names and texts and our settings.

The rules: a changed settings file takes effect once this replica has read it (``server/settingsreload.py``).
A change by an administrator is in the log (``state/admin/settings.py``) and applies to every later leader. It
stops applying when the manifest sets a new value for the same key, and is deleted ten minutes later. The keys
with their units and ranges: ``orderlymq_protocol.brokerkeys``. Tools see them through
``processors/admin/config.py``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from orderlymq_broker.settings import BrokerSettings
from orderlymq_protocol.brokerkeys import (
    BROKER_KEYS,
    KeyValueError,
    Kind,
    Use,
    parse_boolean,
    parse_integer,
)

HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class LiveKey:
    """How to read a key from settings, and how to make settings with another value of it."""

    read: Callable[[BrokerSettings], bool | int]
    change: Callable[[BrokerSettings, Any], BrokerSettings]


def text_of(settings: BrokerSettings, name: str) -> str:
    """Return the value of a live key as tools see it."""
    value = LIVE[name].read(settings)

    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def with_text(settings: BrokerSettings, name: str, text: str) -> BrokerSettings:
    """Return the settings with another value of a live key.

    Raises:
        KeyValueError: the text is not a valid value of the key.
    """
    key = BROKER_KEYS[name]
    assert key.use is Use.LIVE, f"{name} cannot be changed while the broker runs"
    value = parse_boolean(text) if key.kind is Kind.BOOLEAN else parse_integer(key, text)

    return LIVE[name].change(settings, value)


def effective(settings: BrokerSettings, overrides: Mapping[str, tuple[str, str]]) -> BrokerSettings:
    """Return the manifest's settings with the later changes by administrators."""
    found = settings
    for name, (text, replaced) in overrides.items():
        # An entry of a later version may name a key that this version does not know. It stays for that version.
        if name not in LIVE or text_of(settings, name) != replaced:
            continue
        try:
            found = with_text(found, name, text)
        except KeyValueError:
            continue  # the range has become narrower since

    return found


def with_live(settings: BrokerSettings, fresh: BrokerSettings) -> BrokerSettings:
    """Return *settings* with the live values of *fresh*, which come from a changed manifest."""
    for key in LIVE.values():
        settings = key.change(settings, key.read(fresh))

    # A manifest has a finer resolution than hours and percents.
    exact = ("retention_ms", "disk_refuse_ratio", "disk_resume_ratio")
    return _in_storage(settings, **{name: getattr(fresh.storage, name) for name in exact})


def _plain(field: str) -> LiveKey:
    return LiveKey(
        lambda settings: getattr(settings, field),
        lambda settings, value: msgspec.structs.replace(settings, **{field: value}),
    )


def _timer(field: str) -> LiveKey:
    return LiveKey(
        lambda settings: getattr(settings.timers, field),
        lambda settings, value: msgspec.structs.replace(
            settings, timers=msgspec.structs.replace(settings.timers, **{field: value})
        ),
    )


def _set_ratio(settings: BrokerSettings, percent: int) -> BrokerSettings:
    refuse = percent / 100
    storage = settings.storage
    gap = max(0.0, storage.disk_refuse_ratio - storage.disk_resume_ratio)

    return _in_storage(settings, disk_refuse_ratio=refuse, disk_resume_ratio=max(0.0, refuse - gap))


def _in_storage(settings: BrokerSettings, **changes: Any) -> BrokerSettings:
    storage = msgspec.structs.replace(settings.storage, **changes)

    return msgspec.structs.replace(settings, storage=storage)


LIVE: Final[Mapping[str, LiveKey]] = {
    "autoCreateTopicEnable": _plain("auto_create_topic"),
    "autoCreateSubscriptionGroup": _plain("auto_create_group"),
    "defaultTopicQueueNums": _plain("default_topic_queues"),
    "brokerPermission": _plain("permission"),
    "rejectTransactionMessage": _plain("reject_transactions"),
    "enablePropertyFilter": _plain("enable_property_filter"),
    "fileReservedTime": LiveKey(
        lambda settings: settings.storage.retention_ms // HOUR_MS,
        lambda settings, hours: _in_storage(settings, retention_ms=hours * HOUR_MS),
    ),
    "diskMaxUsedSpaceRatio": LiveKey(
        lambda settings: round(settings.storage.disk_refuse_ratio * 100), _set_ratio
    ),
    "maxMessageSize": LiveKey(
        lambda settings: settings.storage.body_size_max,
        lambda settings, size: _in_storage(settings, body_size_max=size),
    ),
    "transactionTimeOut": _timer("transaction_timeout_ms"),
    "transactionCheckInterval": _timer("transaction_check_interval_ms"),
    "transactionCheckMax": _timer("transaction_check_max"),
    "timerWheelEnable": _timer("timer_enable"),
    "recallMessageEnable": _timer("recall_enable"),
    "timerMaxDelaySec": LiveKey(
        lambda settings: settings.timers.timer_delay_max_ms // 1000,
        lambda settings, seconds: msgspec.structs.replace(
            settings,
            timers=msgspec.structs.replace(settings.timers, timer_delay_max_ms=seconds * 1000),
        ),
    ),
}
