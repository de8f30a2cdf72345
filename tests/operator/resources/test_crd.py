import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from orderlymq_operator.resources import crd
from orderlymq_operator.resources.kinds import KINDS
from orderlymq_operator.resources.meta import VERSION

_ALLOWED = {
    "type",
    "description",
    "default",
    "enum",
    "pattern",
    "format",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "maxProperties",
    "properties",
    "additionalProperties",
    "items",
    "required",
    "x-kubernetes-validations",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-int-or-string",
}
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_TERMS = (
    f"nodeAffinity.{_REQUIRED}.nodeSelectorTerms[]",
    f"nodeAffinity.{_PREFERRED}[].preference",
    f"podAffinity.{_REQUIRED}[].labelSelector",
    f"podAffinity.{_PREFERRED}[].podAffinityTerm.labelSelector",
    f"podAntiAffinity.{_REQUIRED}[].labelSelector",
    f"podAntiAffinity.{_PREFERRED}[].podAffinityTerm.labelSelector",
)
_GUARDED = {
    "Backup.spec",
    "Backup.spec.clusterRef.name",
    "Backup.spec.deadline",
    "Backup.spec.destination",
    "Backup.spec.resources",
    "Backup.spec.scratch",
    "Backup.spec.verify",
    "ScheduledBackup.spec.clusterRef.name",
    "ScheduledBackup.spec.destination",
    "Cluster.spec",
    "Cluster.spec.bootstrap",
    "Cluster.spec.bootstrap.fromBackup.destination",
    "Cluster.spec.config.maxMessageSize",
    "Cluster.spec.console",
    "Cluster.spec.nameServers.replicas",
    "Cluster.spec.storage",
    "Cluster.spec.storage.className",
    "Cluster.spec.storage.size",
    "Cluster.spec.tls.mode",
    "Cluster.spec.local",
    "Cluster.spec.network.clients[]",
    "Cluster.spec.network.monitoring[]",
    "Cluster.spec.podTemplate.annotations",
    "Cluster.spec.podTemplate.env",
    "Cluster.spec.podTemplate.labels",
    "Cluster.spec.podTemplate.sidecars",
    "Cluster.spec.podTemplate.sidecars[].ports",
    "Cluster.spec.podTemplate.sidecars[].volumeMounts",
    "Cluster.spec.podTemplate.volumeMounts",
    "Cluster.spec.podTemplate.volumes",
    "Topic.spec",
    "Cluster.spec.listeners",
    "Cluster.spec.listeners[]",
    "Topic.spec.clusterRef",
    "Topic.spec.drainTimeout",
    "Topic.spec.routePropagationTime",
    "Topic.spec.topicName",
    "Topic.spec.type",
    "ConsumerGroup.spec",
    "ConsumerGroup.spec.clusterRef",
    "ConsumerGroup.spec.groupName",
    "ConsumerGroup.spec.ordering",
    "User.spec",
    "User.spec.accessKey",
    "User.spec.clusterRef",
    "User.spec.secretFrom",
    "Pipeline.spec",
    "Pipeline.spec.type",
    "Pipeline.spec.storage.accessMode",
    "Pipeline.spec.storage.claimName",
    "Pipeline.spec.storage.className",
    "Pipeline.spec.storage.size",
    "Cluster.spec.addressQuotas.bytesPerSecond",
    "Cluster.spec.config.registerNameServerPeriod",
    "Cluster.spec.podTemplate",
    "Cluster.spec.podTemplate.affinity",
    "Cluster.spec.podTemplate.env[]",
    "Cluster.spec.podTemplate.env[].valueFrom",
    "Cluster.spec.podTemplate.sidecars[].env[]",
    "Cluster.spec.podTemplate.sidecars[].env[].valueFrom",
    "Cluster.spec.podTemplate.sidecars[].volumeMounts[].mountPath",
    "Cluster.spec.podTemplate.sidecars[].volumeMounts[].subPath",
    "Cluster.spec.podTemplate.topologySpreadConstraints[]",
    "Cluster.spec.podTemplate.volumeMounts[].mountPath",
    "Cluster.spec.podTemplate.volumeMounts[].subPath",
    "Cluster.spec.podTemplate.volumes[]",
    "Pipeline.spec.archive",
    "Pipeline.spec.checkpoint",
    "Pipeline.spec.errors",
    "Pipeline.spec.findings",
    "Pipeline.spec.html",
    "Pipeline.spec.path",
    "Pipeline.spec.plan",
    "User.spec.quotas.bytesPerSecond",
    *(f"Cluster.spec.podTemplate.affinity.{term}.matchExpressions[]" for term in _TERMS),
    *(f"Cluster.spec.podTemplate.affinity.{term}.matchLabels" for term in _TERMS[2:]),
    "Cluster.spec.listeners[].annotations",
    "Cluster.spec.network.clients[].podLabels",
    "Cluster.spec.network.monitoring[].podLabels",
    "Cluster.spec.placement.nodeSelector",
    "Cluster.spec.placement.tolerations[]",
    "Cluster.spec.canary.resources",
    "Cluster.spec.console.resources",
    "Cluster.spec.nameServers.resources",
    "Cluster.spec.podTemplate.sidecars[].resources",
    "Cluster.spec.resources",
    "Pipeline.spec.resources",
    "ScheduledBackup.spec.resources",
    "Cluster.spec.podTemplate.tolerations[]",
    "Pipeline.spec.placement.tolerations[]",
    "Cluster.spec.podTemplate.nodeSelector",
    "Pipeline.spec.placement.nodeSelector",
}
_INSIDE = {"properties", "additionalProperties", "x-kubernetes-preserve-unknown-fields"}


def _nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, part in schema.get("properties", {}).items():
        yield from _nodes(part, f"{path}.{name}")
    if "items" in schema:
        yield from _nodes(schema["items"], f"{path}[]")
    if "additionalProperties" in schema:
        yield from _nodes(schema["additionalProperties"], f"{path}{{}}")


def test_the_files_in_the_repository_are_those_the_models_give() -> None:
    """Law: the generated files are those in the repository; run `make crds` after a change of the models."""
    assert crd.differences(crd.FOLDER) == []
    assert crd.differences(Path("crds")) == []
    assert all(path.is_symlink() for path in Path("crds").iterdir())


def test_a_difference_is_noticed_and_written_away(tmp_path: Path) -> None:
    """Law: --check fails if a file is missing, changed or foreign, and passes after generating."""
    (tmp_path / "foreign.yaml").write_text("x")
    assert crd.main(["--check", "--folder", str(tmp_path)]) == 1

    (tmp_path / "foreign.yaml").unlink()
    assert crd.main(["--folder", str(tmp_path)]) == 0
    assert crd.main(["--check", "--folder", str(tmp_path)]) == 0

    (tmp_path / "topics.yaml").write_text("x")
    assert crd.differences(tmp_path) == ["topics.yaml is out of date"]


@pytest.mark.parametrize("kind", KINDS)
def test_schemas_are_structural(kind: str) -> None:
    """Law: schemas are structural: each value has one type, with only keywords that the API server accepts."""
    for path, node in _nodes(crd.schema(kind)):
        assert node.keys() <= _ALLOWED, path
        assert isinstance(node.get("type"), str) != ("x-kubernetes-int-or-string" in node), path
        assert (
            node.get("type") != "object" or path == ".metadata" or len(node.keys() & _INSIDE) == 1
        ), path


@pytest.mark.parametrize("kind", KINDS)
def test_everything_a_user_writes_is_described_and_bounded(kind: str) -> None:
    """Law: everything that users write has a description and bounds, which the cost limit of CEL rules needs."""
    spec = crd.schema(kind)["properties"]["spec"]
    bounds = {
        "string": {"maxLength", "enum"},
        "array": {"maxItems"},
        "integer": {"maximum", "enum"},
    }
    for path, node in _nodes(spec, "spec"):
        wanted = bounds.get(node.get("type", ""))
        assert wanted is None or node.keys() & wanted, path
        assert "type" in node or node.keys() >= {"minimum", "maximum", "pattern", "maxLength"}, path
        assert path.endswith(("[]", "{}")) or "description" in node, path


@pytest.mark.parametrize("kind", KINDS)
def test_conditions_are_a_map_that_begins_as_unknown(kind: str) -> None:
    """Law: conditions are a map by type with Ready as Unknown at first, so `kubectl wait` works from the creation on."""
    conditions = crd.schema(kind)["properties"]["status"]["properties"]["conditions"]

    assert conditions["x-kubernetes-list-type"] == "map"
    assert conditions["x-kubernetes-list-map-keys"] == ["type"]
    assert [(item["type"], item["status"]) for item in conditions["default"]] == [
        ("Ready", "Unknown")
    ]


def test_names_columns_and_subresource_are_those_of_the_reference() -> None:
    """Law: names, columns and status subresource are as documented: short names mqc, mqt, mqg, mqu, mqp, mqb, mqs;
    category mq.
    """
    found = {}
    for kind in KINDS:
        spec = crd.definition(kind)["spec"]
        version = spec["versions"][0]
        columns = [column["name"] for column in version["additionalPrinterColumns"]]
        assert {"Ready", "Age"} <= set(columns)
        assert "status" in version["subresources"]
        assert ("scale" in version["subresources"]) == (kind == "Cluster")
        found[kind] = (spec["names"]["shortNames"], spec["names"]["categories"], spec["scope"])

    assert found == {
        "Cluster": (["mqc"], ["mq"], "Namespaced"),
        "Topic": (["mqt"], ["mq"], "Namespaced"),
        "ConsumerGroup": (["mqg"], ["mq"], "Namespaced"),
        "User": (["mqu"], ["mq"], "Namespaced"),
        "Pipeline": (["mqp"], ["mq"], "Namespaced"),
        "Backup": (["mqb"], ["mq"], "Namespaced"),
        "ScheduledBackup": (["mqs"], ["mq"], "Namespaced"),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_with_which_no_service_can_be_made_is_refused(kind: str) -> None:
    """Law: a name with which no Service can be made is refused when the object is created."""
    found = [each["rule"] for each in crd.schema(kind)["x-kubernetes-validations"]]
    (pattern,) = [
        name
        for each in found
        for name in re.findall(r"self\.metadata\.name\.matches\('(.*)'\)$", each)
    ]

    assert re.fullmatch(pattern, "orders-1")
    assert bool(re.fullmatch(pattern, "4711-orders")) == (kind not in ("Cluster", "Pipeline"))


@pytest.mark.parametrize("kind", KINDS)
def test_both_versions_are_served_and_are_the_same(kind: str) -> None:
    """Law: both API versions differ only in their name, because there is no conversion; the operator's own one is stored."""
    spec = crd.definition(kind)["spec"]
    alike = [{**each, "name": "", "storage": False} for each in spec["versions"]]

    assert spec["conversion"] == {"strategy": "None"}
    assert [each["name"] for each in spec["versions"]] == ["v1alpha1", "v1beta1"]
    assert [each["name"] for each in spec["versions"] if each["storage"]] == [VERSION]
    assert all(each["served"] for each in spec["versions"])
    assert alike[0] == alike[1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_definition_fits_where_kubectl_keeps_it(kind: str) -> None:
    """Law: a definition fits into the annotation of `kubectl apply`; Kubernetes allows 256 KiB for all annotations."""
    assert len(json.dumps(crd.definition(kind), separators=(",", ":"))) < 250_000


def test_rules_of_a_field_and_of_what_it_holds_both_hold() -> None:
    """Law: a field's own rule and the rule of its content both hold: a fixed destination still names exactly one place."""
    destination = crd.schema("Backup")["properties"]["spec"]["properties"]["destination"]
    rules = [each["rule"] for each in destination["x-kubernetes-validations"]]

    assert rules == ["has(self.pvc) != has(self.objectStore)", "self == oldSelf"]


def test_what_must_not_change_is_guarded_by_rules() -> None:
    """Law: CEL rules refuse what we would refuse: changes of immutable fields, queues and storage,
    and values that brokers refuse.
    """
    guarded = {
        f"{kind}{path}"
        for kind in KINDS
        for path, node in _nodes(crd.schema(kind))
        if "x-kubernetes-validations" in node
    }

    assert guarded - set(KINDS) == _GUARDED


@pytest.mark.parametrize("kind", KINDS)
def test_rules_name_fields_as_every_api_server_knows_them(kind: str) -> None:
    """Law: a field whose name is a CEL keyword is escaped, because older Kubernetes refuses the kind otherwise."""
    words = "in|as|break|const|continue|else|for|function|if|import|let|loop|package|namespace|return|var|void|while"
    for path, node in _nodes(crd.schema(kind)):
        for each in node.get("x-kubernetes-validations", ()):
            assert not re.search(rf"\.({words})\b", each["rule"]), path


def test_the_files_are_plain_yaml_without_aliases() -> None:
    """Law: the files have no YAML aliases, which some tools do not read."""
    for text in crd.files().values():
        assert "&id" not in text
        assert yaml.safe_load(text)["kind"] == "CustomResourceDefinition"
