"""
CustomResourceDefinitions, generated from the models into the chart; the files of `crds/` are links to them.

Beside them stands what the API server warns of (`changewarnings`).
`python -m orderlymq_operator.resources.crd` writes the files, `--check` only reports whether they are current. Rule: the
schemas are structural (no references, no alternatives, every value has one type, or is a number or a text), because the API server
refuses others; what a schema cannot say is said in CEL rules that stand beside the models.
"""

import argparse
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from orderlymq_operator.resources import changewarnings, consumergroup, topic, user
from orderlymq_operator.resources.backups import backup, bootstrap, scheduledbackup
from orderlymq_operator.resources.cluster import cluster, listeners, security
from orderlymq_operator.resources.cluster.rollout import describe_rollout
from orderlymq_operator.resources.kinds import KINDS
from orderlymq_operator.resources.meta import (
    GROUP,
    VERSION,
    VERSIONS,
    rule,
    rule_of_whole,
    rules,
    set_once,
)
from orderlymq_operator.resources.pipelines import pipeline
from orderlymq_operator.resources.pipelines.jobtypes import SPEC_RULES

_CATEGORY: Final = "mq"
_PLURALS: Final = {
    "Cluster": ("clusters", "mqc"),
    "Topic": ("topics", "mqt"),
    "ConsumerGroup": ("consumergroups", "mqg"),
    "User": ("users", "mqu"),
    "Pipeline": ("pipelines", "mqp"),
    "Backup": ("backups", "mqb"),
    "ScheduledBackup": ("scheduledbackups", "mqs"),
}
_READY: Final = '.status.conditions[?(@.type=="Ready")].status'
_COLUMNS: Final[dict[str, list[tuple[str, str, str]]]] = {
    "Cluster": [
        ("Ready", "string", _READY),
        ("Groups", "integer", ".spec.groups"),
        ("Replicas", "integer", ".spec.replicasPerGroup"),
        ("Leaders", "string", ".status.leaders"),
    ],
    "Topic": [
        ("Cluster", "string", ".spec.clusterRef.name"),
        ("Type", "string", ".spec.type"),
        ("Queues", "integer", ".spec.queues"),
        ("Ready", "string", _READY),
    ],
    "ConsumerGroup": [
        ("Cluster", "string", ".spec.clusterRef.name"),
        ("Ordering", "string", ".spec.ordering"),
        ("Members", "integer", ".status.members"),
        ("Lag", "integer", ".status.lag"),
        ("Ready", "string", _READY),
    ],
    "User": [
        ("Cluster", "string", ".spec.clusterRef.name"),
        ("Admin", "boolean", ".spec.admin"),
        ("Ready", "string", _READY),
    ],
    "Pipeline": [
        ("Type", "string", ".spec.type"),
        ("Phase", "string", ".status.phase"),
        ("Batch", "integer", ".status.lastBatch"),
        ("Lag", "integer", ".status.lag"),
        ("Rows/s", "integer", ".status.rowsPerSecond"),
        ("Ready", "string", _READY),
    ],
    "Backup": [
        ("Cluster", "string", ".spec.clusterRef.name"),
        ("Phase", "string", ".status.phase"),
        ("Id", "string", ".status.backupId"),
        ("Bytes", "integer", ".status.sizeBytes"),
        ("Completed", "date", ".status.completedAt"),
        ("Ready", "string", _READY),
    ],
    "ScheduledBackup": [
        ("Cluster", "string", ".spec.clusterRef.name"),
        ("Schedule", "string", ".spec.schedule"),
        ("Suspend", "boolean", ".spec.suspend"),
        ("Last", "string", ".status.lastBackup"),
        ("Next", "string", ".status.nextScheduleTime"),
        ("Ready", "string", _READY),
    ],
}
_SPEC_RULES: Final[dict[str, dict[str, Any]]] = {
    "Cluster": rules(
        rule(
            "duration(self.config.raftElectionTimeout) >= duration(self.config.raftHeartbeat) "
            "+ duration(self.config.raftHeartbeat)",
            "raftElectionTimeout must be at least twice raftHeartbeat",
            field=".config.raftElectionTimeout",
        ),
        rule(
            f"duration(self.config.raftElectionTimeout) <= duration('{cluster.ELECTION_MAX}')",
            f"raftElectionTimeout must be at most {cluster.ELECTION_MAX}",
            field=".config.raftElectionTimeout",
        ),
        rule(
            "self.groups >= oldSelf.groups || self.scaleDown.policy == 'Drain'",
            "groups cannot be removed while their queues may hold messages; set scaleDown.policy to Drain",
            field=".groups",
        ),
        rule(
            "self.tls.mode == 'Disabled' || has(self.tls.secretName) || "
            "(has(self.tls.certificateFile) && has(self.tls.keyFile))",
            "TLS needs secretName, or outside Kubernetes certificateFile and keyFile",
            field=".tls",
        ),
        rule(
            "!has(self.tls.secretName) || !(has(self.tls.certificateFile) || has(self.tls.keyFile) || "
            "has(self.tls.caFile))",
            "set secretName or the files, not both",
            field=".tls.secretName",
        ),
        rule(
            "self.tls.clientAuth == 'None' || has(self.tls.secretName) || has(self.tls.caFile)",
            "clientAuth needs secretName or caFile",
            field=".tls.clientAuth",
        ),
        set_once("storage.className"),
        *cluster.SPEC_RULES,
        *security.SPEC_RULES,
        *bootstrap.SPEC_RULES,
    ),
    "Topic": topic.SPEC_RULES,
    "ConsumerGroup": consumergroup.SPEC_RULES,
    "User": user.SPEC_RULES,
    "Pipeline": SPEC_RULES,
    "Backup": backup.SPEC_RULES,
    "ScheduledBackup": {},
}
_OBJECT_RULES: Final = {"User": [user.NAME_RULE], "Cluster": [listeners.NAMES_RULE]}
# Pods, Services and labels are named after their object and have at most 63 characters. The suffixes of a Cluster are
# the longest, with the hash that Kubernetes appends to the name of a StatefulSet.
_NAME_MAX: Final = {
    "Cluster": 40,
    "Topic": 63,
    "ConsumerGroup": 63,
    "User": 63,
    "Pipeline": pipeline.NAME_MAX,
    "Backup": backup.NAME_MAX,
    "ScheduledBackup": scheduledbackup.NAME_MAX,
}
_LABEL: Final = rule_of_whole(
    "self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
    "the name must be a DNS label: lower-case letters, digits and -",
)
# Kubernetes before 1.36 accepts no Service whose name begins with a digit.
_SERVICE_LABEL: Final = rule_of_whole(
    "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
    "the name must begin with a letter, because Services are named after it, and may contain only lower-case letters, digits "
    "and -",
)
_SERVICES: Final = ("Cluster", "Pipeline")
# `kubectl scale` sets the replicas of every raft group, because the number of raft groups cannot simply be changed.
_SUBRESOURCES: Final[dict[str, dict[str, Any]]] = {
    "Cluster": {
        "scale": {
            "specReplicasPath": ".spec.replicasPerGroup",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        }
    }
}
# `kubectl wait` works from the start: the condition exists before any controller has seen the object.
_WAITING: Final = {
    "type": "Ready",
    "status": "Unknown",
    "reason": "Pending",
    "message": "Waiting for controller",
    "lastTransitionTime": "1970-01-01T00:00:00Z",
}
_RULES: Final = "x-kubernetes-validations"
_DROPPED: Final = {"title", "additionalProperties", "propertyNames", "const"}
# In the chart, which must contain everything when it is packaged.
FOLDER: Final = Path("charts/orderlymq/files/crds")
WARNINGS: Final = "changewarnings.yaml"
_HEADER: Final = "# Generated by `make crds` from orderlymq_operator; do not edit.\n"


def fields_set_once(kind: str) -> list[str]:
    """Return the fields of a spec that can be set only at its creation, with dots between the parts."""
    found = _SPEC_RULES[kind].get(_RULES, ())
    fields = [(each.get("fieldPath", "").removeprefix("."), each["rule"]) for each in found]
    return [field for field, expression in fields if expression == set_once(field)["rule"]]


def definition(kind: str) -> dict[str, Any]:
    """Return the CustomResourceDefinition of *kind*."""
    plural, short = _PLURALS[kind]
    columns = [
        {"name": name, "type": type_, "jsonPath": path} for name, type_, path in _COLUMNS[kind]
    ]
    columns.append({"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"})
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short],
                "categories": [_CATEGORY],
            },
            "conversion": {"strategy": "None"},
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": version == VERSION,
                    "subresources": {"status": {}} | _SUBRESOURCES.get(kind, {}),
                    "additionalPrinterColumns": columns,
                    "schema": {"openAPIV3Schema": schema(kind)},
                }
                for version in VERSIONS
            ],
        },
    }


def schema(kind: str) -> dict[str, Any]:
    """Return the structural schema of *kind*."""
    model = KINDS[kind]
    raw = model.model_json_schema(by_alias=True)
    found = _structural(raw, raw.get("$defs", {}))
    properties = found["properties"]
    properties["apiVersion"] = {"type": "string"}
    properties["kind"] = {"type": "string"}
    properties["metadata"] = {"type": "object"}
    properties["spec"].update(_SPEC_RULES[kind])
    if kind == "Cluster":
        describe_rollout(properties["spec"])
    # Remove the default: its rules would be evaluated before its parts are filled in.
    properties["spec"].pop("default", None)
    properties["status"]["properties"]["conditions"]["default"] = [_WAITING]
    properties["status"]["default"] = {}
    found["required"] = ["spec"]
    found.update(
        rules(
            rule_of_whole(
                f"self.metadata.name.size() <= {_NAME_MAX[kind]}",
                f"the name of a {kind} may have at most {_NAME_MAX[kind]} characters",
            ),
            _LABEL if kind not in _SERVICES else _SERVICE_LABEL,
            *_OBJECT_RULES.get(kind, []),
        )
    )
    return found


def _structural(node: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Resolve references and optional types, and drop what the API server does not accept."""
    node = dict(node)
    if "$ref" in node:
        # Keys next to the reference (a description, a default) override those of the target; the rules of both apply.
        target = definitions[node.pop("$ref").rpartition("/")[2]]
        both = [*target.get(_RULES, []), *node.get(_RULES, [])]
        node = {**target, **node} | ({_RULES: both} if both else {})
    if "anyOf" in node:
        (inner,) = (option for option in node.pop("anyOf") if option.get("type") != "null")
        node = {**inner, **node}
        return _structural(node, definitions)

    values = node.pop("additionalProperties", None)
    if "patternProperties" in node:
        ((pattern, values),) = node.pop("patternProperties").items()
        keys = rule(f"self.all(key, key.matches('{pattern}'))", f"keys have the form {pattern}")
        node[_RULES] = [*node.get(_RULES, []), keys]
    found = {key: value for key, value in node.items() if key not in _DROPPED | {"$defs"}}
    if "x-kubernetes-int-or-string" in found:
        del found["type"]
    if found.get("default", ...) is None:
        del found["default"]
    if isinstance(values, dict):
        found["additionalProperties"] = _structural(values, definitions)
    if "items" in found:
        found["items"] = _structural(found["items"], definitions)
    if "properties" in found:
        found["properties"] = {
            name: _structural(value, definitions) for name, value in found["properties"].items()
        }
        if isinstance(found.get("default"), dict):
            # If the parts have the same defaults, an empty object lets the API server fill them in.
            default = _without_none(found["default"])
            found["default"] = {} if default == _defaults(found) else default
    return found


def _defaults(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the object that the API server makes of an empty one."""
    found = {}
    for name, part in schema.get("properties", {}).items():
        if "default" in part:
            given = part["default"]
            found[name] = {**_defaults(part), **given} if isinstance(given, dict) else given
    return found


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(part) for key, part in value.items() if part is not None}
    return value


@cache
def files() -> Mapping[str, str]:
    """Return the text of every file, by name."""
    return {f"{_PLURALS[kind][0]}.yaml": _HEADER + _dump(definition(kind)) for kind in KINDS}


def change_warnings() -> str:
    """Return the text of the file with the policies that warn of changes."""
    return _HEADER + _dump(changewarnings.policies(schema("Cluster")["properties"]["spec"]))


def _dump(data: object) -> str:
    return yaml.dump(data, Dumper=_PlainDumper, sort_keys=False, width=100, allow_unicode=True)


class _PlainDumper(yaml.SafeDumper):
    """Writes equal parts twice instead of an anchor and an alias."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def differences(folder: Path) -> list[str]:
    """Return how the files in *folder* differ from the models; empty if they are up to date."""
    wanted = files()
    present = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.yaml")}
    return [
        f"{name} is {'out of date' if name in present else 'missing'}"
        for name in sorted(wanted)
        if present.get(name) != wanted[name]
    ] + [f"{name} belongs to no kind" for name in sorted(present.keys() - wanted.keys())]


def _write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files().items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder.parent / WARNINGS).write_text(change_warnings(), encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Write the files, or check them; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m orderlymq_operator.resources.crd", description=__doc__
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if a file is out of date"
    )
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder of the files")
    options = parser.parse_args(arguments)
    folder: Path = options.folder

    if options.check:
        wrong = differences(folder)
        warnings = folder.parent / WARNINGS
        if not warnings.exists() or warnings.read_text(encoding="utf-8") != change_warnings():
            wrong.append(f"../{WARNINGS} is out of date")
        for line in wrong:
            sys.stderr.write(f"{folder}/{line}; run `make crds`\n")
        return 1 if wrong else 0
    _write(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
