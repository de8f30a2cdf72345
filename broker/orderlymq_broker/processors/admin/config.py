"""
Administration of the broker itself: 25, 26, 306, 329.

The rules: settings are shown under RocketMQ's keys. Some settings may change while the broker runs. Their changes go
through the log and hold for the whole broker group, so that a fail-over does not undo them. A change of any other key
is refused; the refusal names the key and the reason, and then nothing is changed. The keys and their meaning are in
``orderlymq_protocol.brokerkeys``. Model: AdminBrokerProcessor.
"""

from typing import Final

from orderlymq_broker.core.effects import Caller, Effect, Now, Propose
from orderlymq_broker.core.livesettings import LIVE, text_of, with_text
from orderlymq_broker.core.requestcontext import Context, RequestRefused, answer
from orderlymq_broker.core.responses import change
from orderlymq_broker.processors.topics.retention import RetentionService
from orderlymq_broker.state.admin.settingsrecords import SettingsSet
from orderlymq_protocol.body.catalogue import DataVersion
from orderlymq_protocol.body.javaproperties import java_properties
from orderlymq_protocol.brokerkeys import BROKER_KEYS, KeyValueError, changes_nothing, why_not
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.names import TRACE_TOPIC

_REMARK: Final = (
    "applies to the whole broker group, also after a fail-over, until the cluster's manifest "
    "sets another value; put it into the manifest so that new groups have it, too"
)

# A replica gets a changed manifest within two minutes. If a leader's value differs for this long, it is the newer one.
MANIFEST_MS: Final = 10 * 60_000


class EndedOverrides:
    """Ends administrators' overrides of settings whose value in the manifest has changed since."""

    def __init__(self, context: Context) -> None:
        self._context = context
        # By name: the time (monotonic ms) since which this leader's manifest differs from the value that was overridden.
        self._since_ms: dict[str, int] = {}

    def start(self) -> None:
        """Begin to lead; reset the times, because the former leader's manifest may have been a different one."""
        self._since_ms.clear()

    def tick(self, now: Now) -> list[Effect]:
        """Propose to end the overrides whose value in the manifest has changed."""
        manifest, at_ms = self._context.manifest, now.monotonic_ms
        ended = {
            name: text
            for name, (_, replaced) in self._context.state.overrides.values.items()
            if name in LIVE and (text := text_of(manifest, name)) != replaced
        }
        self._since_ms = {name: self._since_ms.get(name, at_ms) for name in ended}
        over = [
            name for name, since_ms in self._since_ms.items() if at_ms - since_ms >= MANIFEST_MS
        ]
        if not over:
            return []
        # Propose it again only if this proposal is lost and the same time has passed once more.
        self._since_ms.update(dict.fromkeys(over, at_ms))

        return [Propose([SettingsSet({name: (ended[name], ended[name]) for name in over})])]


class ConfigAdministration:
    """Serves administrators' requests about the broker's settings."""

    def __init__(self, context: Context, retention: RetentionService) -> None:
        self._context = context
        self._retention = retention

    def show(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 26: the settings as Java properties, and their version."""
        lines = [f"{key}={value}\n" for key, value in sorted(self._properties(caller).items())]
        changed = self._context.state.overrides.version
        version = DataVersion(changed.counter, changed.timestamp).to_json().decode()

        return answer(request, caller, ext={"version": version}, body="".join(lines).encode())

    def change(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 25: change settings; either all of them change or none."""
        context = self._context
        present = self._properties(caller)
        values: dict[str, tuple[str, str]] = {}
        for name, text in parse_properties(request.body).items():
            if present.get(name) == text and name not in LIVE:
                continue
            if name in LIVE:
                # Later comparisons use the value in our own notation, not as the administrator typed it.
                changed = self._with(name, text)
                values[name] = (changed, text_of(context.manifest, name))
            elif not changes_nothing(name, text):
                raise _refusal(
                    name, f"{why_not(name)}. Keys that can be changed: {', '.join(sorted(LIVE))}"
                )
        # Also propose values that are already set, because another change may be under way.
        if not values:
            return answer(request, caller)

        return change(
            context,
            [SettingsSet(values)],
            request,
            caller,
            done=lambda _: answer(request, caller, remark=_REMARK),
        )

    def clean(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 306 and 329: look for expired messages with the next tick."""
        self._retention.look_now(now)

        return answer(request, caller)

    def _with(self, name: str, text: str) -> str:
        try:
            return text_of(with_text(self._context.settings, name, text), name)
        except KeyValueError as error:
            raise _refusal(name, f"the value {text!r} is not allowed: {error}") from error

    def _properties(self, caller: Caller) -> dict[str, str]:
        settings = self._context.settings
        timers = settings.timers
        is_outside = bool(caller.listener)

        return {
            **{name: text_of(settings, name) for name in LIVE},
            "aclEnable": _text(settings.access.enable),
            "brokerClusterName": settings.cluster,
            "brokerIP1": settings.group if is_outside else settings.address.host,
            "brokerId": "0",
            "brokerName": settings.group,
            "brokerRole": "SYNC_MASTER",
            "enableDLegerCommitLog": "true",
            "filterServerNums": "0",
            "flushDiskType": settings.storage.flush,
            "listenPort": "" if is_outside else str(settings.address.port),
            "maxMsgsNumBatch": BROKER_KEYS["maxMsgsNumBatch"].default,
            "messageDelayLevel": timers.delay_levels,
            "msgTraceTopicName": TRACE_TOPIC,
            "namesrvAddr": "" if is_outside else ";".join(map(str, settings.name_servers)),
            "registerNameServerPeriod": str(timers.register_ms),
            "slaveReadEnable": "false",
            "storePathRootDir": str(settings.data_dir),
            "traceOn": "true",
            "traceTopicEnable": _text(settings.trace_topic_enable),
            "useTLS": _text(settings.tls.mode != "disabled"),
        }


def parse_properties(body: bytes) -> dict[str, str]:
    """Read Java properties as tools write them: ``key=value`` lines.

    Raises:
        RequestRefused: the body is not UTF-8 text, or has no such line (1).
    """
    try:
        wished = java_properties(body.decode())
    except UnicodeDecodeError as error:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, "the body is not UTF-8 text") from error
    if not wished:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, "string2Properties error: write lines of key=value"
        )

    return wished


def _refusal(key: str, problem: str) -> RequestRefused:
    return RequestRefused(ResponseCode.SYSTEM_ERROR, f"Can not update config {key}: {problem}")


def _text(value: bool) -> str:
    return "true" if value else "false"
