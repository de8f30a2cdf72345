"""
docs/reference/settings.md names every setting, with unit, default, range and effect; a test compares it with the code.

`python -m tests.test_settings_page` writes the page again.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Final

from orderlymq.consumer.core import concurrent as concurrency
from orderlymq.consumer.core import locks
from orderlymq.consumer.core import ordered as ordering
from orderlymq.consumer.core.flowcontrol import REPORT_EVERY
from orderlymq.consumer.listeners import context as listenercontext
from orderlymq.consumer.settings import ConsumerSettings
from orderlymq.settings import ClientSettings, ProducerSettings
from orderlymq_nameserver.settings import NameServerSettings
from orderlymq_operator.resources.cluster.cluster import Config
from orderlymq_protocol.brokerkeys import BROKER_KEYS, BrokerKey, Use
from tests.broker.processors.adminshell import AdminShell

PAGE: Final = Path(__file__).parents[1] / "docs" / "reference" / "settings.md"

HEAD: Final = """\
# Settings

Every setting under RocketMQ's name, with its unit, default, range and effect. A value that does not fit is
refused by name and with the range, never clipped silently. Where our default is another one than RocketMQ's,
the table shows both.

This page is generated: `python -m tests.test_settings_page`.

## Brokers

They stand in a Cluster's `spec.config`. Times may be written as `6s` or, as in RocketMQ, as a number of
milliseconds; sizes as `4Mi` or as a number of bytes (in a Kubernetes manifest as text: `6s`, `"4194304"`).

*Live* keys change while the cluster runs. Brokers read them again from the manifest: within a second on a laptop, within two minutes on
Kubernetes, whose kubelet copies the file. `mqadmin updateBrokerConfig -b BROKER -k KEY -v VALUE` (code 25) changes them immediately. Such a change goes
through the raft log: it holds for the whole group, also after a fail-over, until the manifest says something new about the same key.
A manifest that takes that back within ten minutes brings the change back, too; later it does not.
Other keys need new replicas, which an apply starts one by one.
"""

# Effects of the SDK's settings, where their class does not say it.
EFFECTS: Final = {
    "poll_name_server_interval": "how often routes are read again",
    "heartbeat_broker_interval": "how often brokers hear that the client lives",
    "persist_consumer_offset_interval": "how often offsets are committed; also with every pull",
    "rebalance_interval": "how often the own share of queues is computed, besides notifications",
    "create_topic_key": "topic whose settings a topic that a send creates inherits",
    "default_topic_queue_nums": "queues of a topic that a send creates",
    "compress_message_body_over_bytes": "larger bodies are compressed",
    "max_message_size_bytes": "larger bodies are refused before anything is sent",
    "message_model": "CLUSTERING: each message to one member; BROADCASTING: to every member",
    "consume_from": "where a group without an offset starts in a queue; with LAST at the end, but at the first message where the queue still keeps that, so that nothing of a new topic is missed",
    "consume_timestamp": "local time `yyyyMMddHHmmss` for TIMESTAMP; empty: half an hour ago",
    "allocate_message_queue_strategy": "which member takes which queue",
    "consume_concurrently_max_span": "widest span of offsets that is cached of one queue",
    "pull_threshold_for_queue": "most messages that are cached of one queue",
    "pull_threshold_size_for_queue_mib": "most bytes that are cached of one queue",
    "pull_threshold_for_topic": "the same for all queues of a topic together",
    "pull_threshold_size_for_topic_mib": "the same for all queues of a topic together",
    "consume_message_batch_max_size": "most messages of one listener call",
    "pull_batch_size": "messages asked for with one pull",
    "pull_interval": "pause between two pulls of a queue",
    "post_subscription_when_pull": "send the expression with every pull",
    "broker_suspend_max_time": "how long a broker holds a pull that finds nothing",
    "max_time_consume_continuously": "after that long a queue lets others have the thread",
}
# Constants in the code of RocketMQ's clients and what stands for them here.
CONSTANTS: Final = (
    ("PULL_TIME_DELAY_MILLS_WHEN_FLOW_CONTROL", "50 ms", "none: a pull goes on when there is room"),
    (
        "PULL_TIME_DELAY_MILLS_WHEN_EXCEPTION",
        "3000 ms (1000 in 5.x)",
        "20 ms, doubled up to 1000 ms",
    ),
    ("MAX_TIME_CONSUME_CONTINUOUSLY", "60 s", "`max_time_consume_continuously`"),
    ("rest after that", "10 ms", f"{ordering.YIELD_MS} ms"),
    ("time-out of LOCK_BATCH_MQ", "1000 ms", "1000 ms"),
    ("next try when the lock was lost", "10 ms", f"{ordering.RELOCK_LOST_MS} ms"),
    ("next try when there is no lock", "100 ms", f"{locks.RELOCK_FAILED_MS} ms"),
    ("next try when another one holds it", "3000 ms", f"{locks.RELOCK_REFUSED_MS} ms"),
    ("wait after OFFSET_ILLEGAL", "10 000 ms", "none: the corrected offset is used immediately"),
    ("REBALANCE_LOCK_INTERVAL", "20 s", "`lock_renew`"),
    ("local retry after a refused send-back", "5000 ms", f"{concurrency.LOCAL_RETRY_MS} ms"),
    ("flow control is logged each", "1000 times", f"{REPORT_EVERY} times"),
    ("delay level of a retry", "3 + times", "3 + times"),
)

Cells = Sequence[object]


def table(head: Sequence[str], rows: Iterable[Cells]) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        cells = [str(cell).replace("|", "\\|").replace("\n", " ") for cell in row]
        lines.append("| " + " | ".join(cells) + " |")

    return "\n".join(lines) + "\n"


# -- brokers ---------------------------------------------------------------------------------------


def keys(*uses: Use) -> list[BrokerKey]:
    return [key for key in BROKER_KEYS.values() if key.use in uses]


def broker_tables() -> str:
    served = [
        (f"`{key.name}`", key.unit, _default(key), key.range, _live(key), key.effect)
        for key in keys(Use.LIVE, Use.START)
    ]
    ours = [
        (f"`{field.alias}`", _manifest_default(field.default), _bounds(field), field.description)
        for field in Config.model_fields.values()
        if field.alias not in BROKER_KEYS and field.alias not in ("lockMaxLiveTime",)
    ]
    shown = [(f"`{key.name}`", _default(key), key.effect) for key in keys(Use.SHOWN)]
    inert = [(f"`{key.name}`", key.default, key.effect) for key in keys(Use.INERT)]
    reasons: dict[str, list[str]] = {}
    for key in keys(Use.ALWAYS, Use.REFUSED):
        reasons.setdefault(key.effect, []).append(f"`{key.name}`")
    refused = [(", ".join(names), reason) for reason, names in reasons.items()]

    return (
        table(["key", "unit", "default", "range", "live", "effect"], served)
        + "\nOf our own, beside them in `spec.config`:\n\n"
        + table(["key", "default", "range", "effect"], ours)
        + "\nShown by code 26 and not to be set, because they follow from the manifest:\n\n"
        + table(["key", "value there", "what it is here"], shown)
        + "\nTaken from tools that set them by habit (code 25), without an effect; refused in manifests:\n\n"
        + table(["key", "default there", "why"], inert)
        + "\nRefused, in manifests and by code 25, with this reason:\n\n"
        + table(["keys of RocketMQ", "reason"], refused)
    )


def _default(key: BrokerKey) -> str:
    return key.default if key.ours is None else f"{key.ours} (RocketMQ: {key.default})"


def _live(key: BrokerKey) -> str:
    return "live" if key.use is Use.LIVE else ""


def _manifest_default(value: object) -> str:
    return (
        {True: "true", False: "false"}.get(value, str(value))
        if isinstance(value, bool)
        else str(value)
    )


def _bounds(field: Any) -> str:
    low = next((part.ge for part in field.metadata if hasattr(part, "ge")), None)
    high = next((part.le for part in field.metadata if hasattr(part, "le")), None)
    if low is not None:
        return f"{low} to {high}"
    choices = re.findall(r"'([^']+)'", str(field.annotation))

    return ", ".join(choices) if "Literal" in str(field.annotation) else ""


# -- clients ---------------------------------------------------------------------------------------


def documented(kind: type) -> Mapping[str, str]:
    """Return what the docstring of a class says of its attributes."""
    text = (kind.__doc__ or "").partition("Attributes:\n")[2]
    found: dict[str, str] = {}
    for entry in re.split(r"\n {8}(?=\S)", "\n" + text):
        names, _, words = entry.strip().partition(": ")
        for name in names.split(", "):
            if words:
                found[name] = " ".join(words.split())

    return found


def sdk_table(kind: type) -> str:
    words = documented(kind)
    rows = []
    for declared in dataclasses.fields(kind):
        meta = declared.metadata
        name = declared.name
        default = declared.default
        if default is dataclasses.MISSING:
            assert declared.default_factory is not dataclasses.MISSING
            default = type(declared.default_factory()).__name__
        bounds = ""
        if meta.get("low") is not None:
            off = meta["off"]
            limits = f"{_shown(meta['low'])} to {_shown(meta['high'])}"
            bounds = limits + ("" if off is None else f", or {off}")
        rocketmq = f"`{meta['rocketmq']}`" if meta.get("rocketmq") else ""
        effect = words.get(name) or EFFECTS.get(name)
        assert effect, f"say what {name} does, in EFFECTS or where it is declared"
        rows.append(
            (
                rocketmq,
                f"`{name}`",
                meta.get("unit") or _unit(name),
                _shown(default),
                bounds,
                effect,
            )
        )

    return table(["RocketMQ's key", "SDK", "unit", "default", "range", "effect"], rows)


def _unit(name: str) -> str:
    for ending, unit in (("_mib", "MiB"), ("_bytes", "bytes")):
        if name.endswith(ending):
            return unit

    return ""


def _shown(value: object) -> str:
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, bool):
        return str(value).lower()

    return f"{value:.7g}" if isinstance(value, float) else str(value)


def client_tables() -> str:
    parts = [
        "\n## Clients\n\nArguments of the SDK's classes, and RocketMQ's name of each. Java, Go and Node clients "
        "are set as their own documents say.\n"
    ]
    for title, kind in (
        ("Shared by producers and consumers", ClientSettings),
        ("Producers", ProducerSettings),
        ("Push consumers", ConsumerSettings),
    ):
        parts.append(f"\n### {title}\n\n{sdk_table(kind)}")
    parts.append("\n### Settings of one listener call\n\n")
    parts.append(
        table(
            ["context", "field", "default", "effect"],
            [
                (
                    kind.__name__,
                    f"`{field.name}`",
                    _shown(field.default),
                    documented(kind)[field.name],
                )
                for kind in (listenercontext.OrderedContext, listenercontext.ConcurrentContext)
                for field in dataclasses.fields(kind)
                if field.name in documented(kind) and field.name != "still_holds"
            ],
        )
    )
    parts.append("\n### Constants of RocketMQ's clients\n\n")
    parts.append(table(["there", "value", "in the SDK"], CONSTANTS))

    return "".join(parts)


def name_server_table() -> str:
    defaults = NameServerSettings()
    rows = [
        ("`listenPort`", "", defaults.listen.port, "where clients and groups connect"),
        (
            "`scanNotActiveBrokerInterval`",
            "ms",
            defaults.scan_ms,
            "how often silent registrations are looked for",
        ),
        (
            "brokerChannelExpiredTime (a constant there)",
            "ms",
            defaults.expiry_ms,
            "a group that was silent for so long leaves the routes",
        ),
        ("`kvConfigPath`", "", "in the data directory", "keeps the key-value configuration"),
        ("`orderMessageEnable`", "", "true", "routes carry `orderTopicConf`; always on"),
    ]

    return (
        "\n## Name servers\n\nShown by code 319; the ports stand in `spec.local` of the Cluster.\n\n"
        + table(["key", "unit", "default", "effect"], rows)
    )


def render() -> str:
    return HEAD + "\n" + broker_tables() + name_server_table() + client_tables()


# -- tests -----------------------------------------------------------------------------------------


def test_the_page_of_settings_agrees_with_the_code() -> None:
    """Every key with unit, default, range and effect."""
    assert PAGE.read_text() == render(), "run python -m tests.test_settings_page"


def test_what_brokers_show_is_on_the_page() -> None:
    """Code 26 has no key that is not in the table of keys."""
    shown = AdminShell().tool(26).body.decode()

    assert {line.partition("=")[0] for line in shown.splitlines()} <= set(BROKER_KEYS)


if __name__ == "__main__":
    PAGE.write_text(render())
