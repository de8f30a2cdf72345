"""
Which fields each type of pipeline has, and which combinations are allowed.

Pure. The model's checks and the CEL rules of the schema use one table; a test compares it with the models of
`orderlymq pipeline run`.
"""

from typing import Final, Literal

from orderlymq_operator.resources.meta import rule, rules

PipelineType = Literal[
    "archive",
    "compact",
    "order-audit",
    "skew-report",
    "lag",
    "dead-letters",
    "redrive",
    "replay",
    "mirror",
    "cdc-apply",
]
AVAILABLE_NOW: Final = "availableNow"
_STREAM: Final = ("source", "checkpoint", "trigger", "metricsPort")
# The fields of each type in addition to `type` and `spark`; those in REQUIRED must be present.
FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "archive": (*_STREAM, "path", "format", "codec", "catalog", "table"),
    "compact": ("path", "targetBytes", "minFiles"),
    "order-audit": (
        *("source", "archive", "topics", "sequenceProperty", "epochProperty", "stream"),
        *("checkpoint", "trigger", "findings", "findingsMax", "firstSequence"),
    ),
    "skew-report": ("source", "capacityPerQueue", "targetUse", "candidates", "top", "html"),
    "lag": ("bootstrap", "options", "topic", "groups", "quantiles"),
    "dead-letters": ("bootstrap", "options", "group"),
    "redrive": (
        *("bootstrap", "options", "group", "plan", "target", "keys", "send", "onOvertaken"),
        *("onDoubtful", "maxRedrives", "rate"),
    ),
    "replay": (*_STREAM, "target", "targetBootstrap", "targetOptions", "keys", "speed"),
    "mirror": (*_STREAM, "targetBootstrap", "targetOptions", "groups"),
    "cdc-apply": (*_STREAM, "path", "format", "keys", "table", "errors", "scd"),
}
REQUIRED: Final[dict[str, tuple[str, ...]]] = {
    "archive": ("source", "checkpoint"),
    "compact": ("path",),
    "order-audit": (),
    "skew-report": ("source", "capacityPerQueue"),
    "lag": ("topic", "groups"),
    "dead-letters": ("group",),
    "redrive": ("group", "plan"),
    "replay": ("source", "checkpoint", "target"),
    "mirror": ("source", "checkpoint", "targetBootstrap"),
    "cdc-apply": ("source", "checkpoint", "path", "format", "keys"),
}
FORMATS: Final = {
    "archive": ("parquet", "delta", "iceberg"),
    "cdc-apply": ("debezium", "canal", "maxwell"),
}
# The fields that a checkpoint depends on: other values need another checkpoint.
_BOUND: Final = ("path", "target", "format", "scd", "catalog", "table")
ONE_SOURCE: Final = "order-audit needs either source (a topic) or archive (a folder)"
ONE_PLACE: Final = (
    "an archive needs path, or with format: iceberg catalog and table (namespace.name) in its place"
)
STREAM_CHECKPOINT: Final = "a streaming order-audit needs checkpoint"
ENDS: Final = "schedule is for pipelines that end: trigger availableNow"
NO_SCHEDULE: Final = "the backend sparkApplication supports no schedule; use pod or kubernetes"


def _stays(name: str) -> str:
    """Return the CEL expression that a field has not changed."""
    return (
        f"has(self.{name}) == has(oldSelf.{name}) && "
        f"(!has(self.{name}) || self.{name} == oldSelf.{name})"
    )


def owners() -> dict[str, tuple[str, ...]]:
    """Return the types that have each field."""
    found: dict[str, tuple[str, ...]] = {}
    for kind, names in FIELDS.items():
        for name in names:
            found[name] = (*found.get(name, ()), kind)
    return found


def foreign(name: str, types: tuple[str, ...]) -> str:
    """Return the error text for a field that belongs to other types."""
    return f"{name} is a field of {', '.join(types)}"


def format_of(kind: str) -> str:
    """Return the error text with the formats that a type accepts."""
    return f"the format of {kind} is {' or '.join(FORMATS[kind])}"


def _rules_of_types() -> list[dict[str, str]]:
    found = []
    for name, types in owners().items():
        some = ", ".join(f"'{kind}'" for kind in types)
        found.append(
            rule(
                f"!has(self.{name}) || self.type in [{some}]",
                foreign(name, types),
                field=f".{name}",
            )
        )
    for kind, needed in REQUIRED.items():
        if needed:
            there = " && ".join(f"has(self.{name})" for name in needed)
            found.append(
                rule(f"self.type != '{kind}' || ({there})", f"{kind} needs {', '.join(needed)}")
            )
    for kind, formats in FORMATS.items():
        some = ", ".join(f"'{name}'" for name in formats)
        found.append(
            rule(
                f"self.type != '{kind}' || !has(self.format) || self.format in [{some}]",
                format_of(kind),
                field=".format",
            )
        )
    return found


SPEC_RULES: Final = rules(
    *_rules_of_types(),
    rule("self.type != 'order-audit' || has(self.source) != has(self.archive)", ONE_SOURCE),
    rule(
        "self.type != 'archive' || (has(self.format) && self.format == 'iceberg' ? "
        "has(self.catalog) && has(self.table) && self.table.contains('.') && !has(self.path) : "
        "has(self.path) && !has(self.catalog) && !has(self.table))",
        ONE_PLACE,
    ),
    rule(
        "!has(self.stream) || !self.stream || has(self.checkpoint)",
        STREAM_CHECKPOINT,
        field=".stream",
    ),
    rule(
        "!has(self.schedule) || !has(self.trigger) || self.trigger == 'availableNow' || "
        "(self.type == 'order-audit' && !(has(self.stream) && self.stream))",
        ENDS,
        field=".schedule",
    ),
    rule(
        "!has(self.schedule) || self.backend != 'sparkApplication'", NO_SCHEDULE, field=".backend"
    ),
    rule(
        "!has(oldSelf.checkpoint) || !has(self.checkpoint) || self.checkpoint != oldSelf.checkpoint || ("
        "(!has(self.source) || !has(oldSelf.source) || self.source.topic == oldSelf.source.topic) && "
        + " && ".join(map(_stays, _BOUND))
        # A mirror asks the target for its position.
        + f" && (self.type == 'mirror' || ({_stays('targetBootstrap')}))"
        # In a replay, keys only select messages.
        + f" && (self.type != 'cdc-apply' || ({_stays('keys')})))",
        f"a checkpoint is valid only for the same source.topic, {', '.join(_BOUND)}, for a replay also targetBootstrap, for "
        "cdc-apply also keys; set another checkpoint if you change one of them",
        field=".checkpoint",
    ),
    rule(
        "has(self.clusterRef) || self.type == 'compact' || has(self.archive) || has(self.bootstrap) || "
        "(has(self.source) && has(self.source.bootstrap))",
        "name the Cluster in clusterRef, or set bootstrap: a pod has no name server of its own",
        field=".clusterRef",
    ),
    rule(
        "has(self.storage.className) == has(oldSelf.storage.className) && "
        "has(self.storage.claimName) == has(oldSelf.storage.claimName)",
        "className and claimName cannot be set or removed later",
        field=".storage",
    ),
)
