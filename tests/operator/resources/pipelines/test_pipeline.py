"""The kind Pipeline: one file for laptop and Kubernetes, with the same refusals."""

from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import TypeAdapter, ValidationError

from orderlymq_operator.resources.kinds import Pipeline
from orderlymq_operator.resources.manifests import reader as manifests
from orderlymq_operator.resources.manifests.combination import combine
from orderlymq_operator.resources.manifests.problems import ManifestError
from orderlymq_operator.resources.pipelines.jobtypes import (
    FIELDS,
    REQUIRED,
    SPEC_RULES,
    PipelineType,
)
from orderlymq_operator.resources.pipelines.pipeline import PipelineSpec
from orderlymq_operator.resources.pipelines.spark import Catalog, PathText, Source, SparkSettings
from orderlymq_spark import specs
from orderlymq_spark.errors import OptionError
from orderlymq_spark.locations.addresses import location
from tests.operator.examples import pipeline

EXAMPLES = sorted((Path(__file__).parents[4] / "examples" / "pipelines").glob("*.yaml"))


ICEBERG: dict[str, Any] = {
    "format": "iceberg",
    "path": None,
    "catalog": {"name": "lake"},
    "table": "shop.orders",
}


def _fields(model: Any) -> dict[str, Any]:
    return {field.alias or name: field for name, field in model.model_fields.items()}


def test_the_types_are_those_that_run() -> None:
    """Law: exactly the types of `orderlymq pipeline list` can be resources."""
    assert list(get_args(PipelineType)) == list(specs.SPECS)
    assert list(FIELDS) == list(REQUIRED) == list(specs.SPECS)


@pytest.mark.parametrize("kind", specs.SPECS)
def test_the_fields_of_a_type_are_those_that_its_model_reads(kind: str) -> None:
    """Law: the fields of each type are exactly those that its model reads."""
    read = _fields(specs.SPECS[kind])

    assert set(FIELDS[kind]) == set(read) - {"type", "spark"}
    needed = {name for name, field in read.items() if field.is_required()} - {"type"}
    assert set(REQUIRED[kind]) == needed
    assert set(FIELDS[kind]) <= set(_fields(PipelineSpec))


def test_the_fields_that_only_kubernetes_obeys_are_those_that_a_run_leaves_alone() -> None:
    """Law: each field of the resource belongs either to the pipeline's run or to the operator alone."""
    of_types = {name for names in FIELDS.values() for name in names}

    assert set(_fields(PipelineSpec)) - of_types - {"type", "spark"} == set(specs.KUBERNETES_ONLY)
    assert set(_fields(Source)) == set(_fields(specs.Source))
    assert set(_fields(Catalog)) == set(_fields(specs.Catalog))
    assert set(_fields(SparkSettings)) == set(_fields(specs.SparkSettings))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_a_resource_and_a_run(path: Path) -> None:
    """Law: each example file is both a resource and a run, and the driver gets exactly what the file says."""
    (found,) = manifests.read([path])
    there = specs.read_pipeline(path)

    assert isinstance(found.resource, Pipeline)
    said = {
        "kind": "Pipeline",
        "metadata": {"name": there.name},
        "spec": found.resource.spec.said(),
    }
    assert specs.parse_pipeline(said) == there


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"codek": "zstd"}, "Extra inputs"),
        ({"targetBytes": 1}, "targetBytes is a field of compact"),
        ({"checkpoint": None}, "archive needs checkpoint"),
        ({"format": "canal"}, "the format of archive is parquet or delta or iceberg"),
        ({"trigger": "soon"}, "pattern"),
        ({"trigger": "10s", "schedule": "0 3 * * *"}, "schedule is for pipelines that end"),
        ({"schedule": "0 3 * * *", "backend": "sparkApplication"}, "supports no schedule"),
        ({"schedule": "every day"}, "pattern"),
        ({"backend": "yarn"}, "'pod', 'kubernetes' or 'sparkApplication'"),
        ({"type": "order-audit", "path": None}, "source"),
    ],
)
def test_what_cannot_run_is_refused_with_what_would(spec: dict[str, Any], words: str) -> None:
    """Law: a spec that cannot run is refused with what would work; model and API schema agree."""
    if spec.get("type") == "order-audit":
        spec = {**spec, "archive": "archive"}

    with pytest.raises(ValidationError, match=words):
        pipeline(**spec)


@pytest.mark.parametrize(
    "spec",
    [
        {"path": None},
        {"format": "iceberg"},
        {**ICEBERG, "path": "archive"},
        {**ICEBERG, "table": "orders"},
        {**ICEBERG, "table": None},
        {**ICEBERG, "catalog": None},
        {**ICEBERG, "format": "delta"},
        {"table": "shop.orders"},
        {"catalog": {"name": "lake"}},
    ],
)
def test_an_archive_has_one_place(spec: dict[str, Any]) -> None:
    """Law: an archive has one place, a path or a catalogue's table; a resource and a run are refused alike."""
    words = "an archive needs path, or with format: iceberg catalog and table"
    assert pipeline(**ICEBERG).spec.table == "shop.orders"
    with pytest.raises(ValidationError, match=words):
        pipeline(**spec)

    facts = {"type": "archive", "source": {"topic": "orders"}, "checkpoint": "c", "path": "archive"}
    given = {name: value for name, value in (facts | spec).items() if value is not None}
    with pytest.raises(OptionError, match=f"^the manifest: {words}"):
        specs.parse_pipeline({"kind": "Pipeline", "metadata": {"name": "a"}, "spec": given})


def test_a_checkpoint_goes_to_no_other_place() -> None:
    """Law: a checkpoint never continues at another place: each field that says where rows go cannot change,
    the catalogue's too.
    """
    found = [each["rule"] for each in SPEC_RULES["x-kubernetes-validations"]]
    bound = next(each for each in found if "oldSelf.checkpoint" in each)

    for name in ("path", "target", "targetBootstrap", "format", "catalog", "table"):
        assert f"self.{name} == oldSelf.{name}" in bound
    assert "(self.type != 'cdc-apply' || (has(self.keys) == has(oldSelf.keys)" in bound


@pytest.mark.parametrize(
    ("spec", "continuous"),
    [
        ({}, False),
        ({"trigger": "availableNow"}, False),
        ({"trigger": "30s"}, True),
        ({"type": "order-audit", "path": None, "trigger": "5s"}, False),
        ({"type": "order-audit", "path": None, "trigger": "5s", "stream": True}, True),
        (
            {"type": "compact", "source": None, "checkpoint": None},
            False,
        ),
    ],
)
def test_a_driver_goes_on_only_where_its_trigger_is_a_time(
    spec: dict[str, Any], continuous: bool
) -> None:
    """Law: a driver runs continuously only with a time trigger; a batch ends whatever its trigger is."""
    assert pipeline(**spec).spec.continuous is continuous


def test_a_local_cluster_leaves_pipelines_to_their_own_command(tmp_path: Path) -> None:
    """Law: a local cluster checks Pipelines with the other manifests, and leaves running to `orderlymq pipeline run`."""
    cluster = {
        "apiVersion": "orderlymq.io/v1alpha1",
        "kind": "Cluster",
        "metadata": {"name": "demo"},
    }
    path = tmp_path / "all.yaml"
    path.write_text(yaml.safe_dump(cluster) + "---\n" + EXAMPLES[0].read_text())

    found = manifests.read([path])
    desired = combine(found, None)

    assert [each.resource.kind for each in found] == ["Cluster", "Pipeline"]
    assert [each.kind for each in desired.resources()] == ["Cluster"]
    path.write_text(path.read_text().replace("type: archive", "type: archives"))
    with pytest.raises(ManifestError, match="did you mean `archive`"):
        manifests.read([path])


@pytest.mark.parametrize("address", ["wasbs://bucket/x", "file:///x", "hdfs:/x"])
def test_an_address_with_an_unknown_scheme_is_no_path(address: str) -> None:
    """Law: an address with an unknown scheme is refused by resource and run; the driver would take it for a local folder."""
    check = TypeAdapter(PathText).validate_python

    with pytest.raises(ValidationError, match=r"scheme \w+: is not supported; supported are"):
        check(address)
    with pytest.raises(OptionError, match=r"scheme \w+: is not supported; supported are"):
        location(address)
    for path in (
        "/data/x",
        "data/x",
        "10:30/x",
        "a/b:/c",
        "s3a://b/x",
        "gs://b/x",
        "abfss://c@a/x",
    ):
        assert check(path) == path == str(location(path))


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (
            {"env": [{"name": "A_KEY", "secret": {"name": each, "key": "k"}} for each in "ab"]},
            "variable 'A_KEY' is given twice; remove one",
        ),
        ({"imagePullSecrets": ["r", "r"]}, "Secret 'r' is given twice; remove one"),
    ],
)
def test_what_a_pod_may_have_once_is_refused_where_it_is_twice(
    spec: dict[str, Any], text: str
) -> None:
    """Law: a list with a doubled entry that Kubernetes would refuse in a pod is refused in the manifest."""
    with pytest.raises(ValidationError, match=text):
        pipeline(**spec)
