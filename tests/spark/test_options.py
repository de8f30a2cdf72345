"""Options and manifests: an error names the wrong value and the right ones."""

import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType

from orderlymq.settings import ClientSettings
from orderlymq_spark.datasource import OrderlyMQDataSource
from orderlymq_spark.errors import OptionError
from orderlymq_spark.options import (
    Bound,
    Connect,
    parse_connect,
    parse_sink,
    parse_source,
)
from orderlymq_spark.specs import parse_pipeline, read_pipeline

EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "pipelines").glob("*.yaml"))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"topic": "t", "startingOffset": "latest"}, "did you mean startingOffsets?"),
        ({"topic": "t", "startingOffsets": "first"}, "must be earliest or latest or group"),
        ({"topic": "t", "startingOffsets": "{"}, "startingOffsets is not JSON"),
        ({"topic": "t", "startingOffsets": "group"}, "go together"),
        ({"topic": "t", "startingOffsets": "latest", "startingTimestamp": "1"}, "not both"),
        ({"topic": "t", "startingTimestamp": "1", "startingOffsetsByTimestamp": "{}"}, "not both"),
        ({"topic": "t", "startingOffsetsByTimestamp": '{"t": 5}'}, "must look like"),
        (
            {"topic": "t", "endingOffsetsByTimestamp": '{"t": {"b": {"0": -1}}}'},
            "endingOffsetsByTimestamp: -1 of t b:0 is not a time; give milliseconds since 1970",
        ),
        ({"topic": "t", "maxRecordsPerPartition": "x"}, "a whole number from 1 on"),
        ({"topic": "t", "startingTimestamp": "noon"}, "startingTimestamp is 'noon'"),
        ({"topic": "t", "maxOffsetsPerTrigger": "0"}, "a whole number from 1 on"),
        ({"topic": "t", "topicsPattern": "x"}, "give one of topic"),
        ({}, "give one of topic"),
        ({"topicsPattern": "("}, "not a regular expression"),
        ({"topic": "t", "columns": "boddy"}, "did you mean body?"),
        ({"topic": "t", "tags": "||"}, "names no tag"),
        ({"topic": "t", "failOnDataLoss": "yes"}, "true or false"),
        (
            {"topic": "t", "client.use_tls": "yes"},
            "client.use_tls is 'yes'; it must be true or fal",
        ),
        ({"topic": "t", "client.request_timeout": "soon"}, "it must be a number"),
        ({"topic": "t", "client.request_timeout": "0"}, "it must be in [0.001"),
        ({"topic": "t", "client.use_tsl": "true"}, "did you mean use_tls?"),
        ({"topic": "t", "accessKey": "a"}, "has no option 'accesskey'"),
        (
            {"topic": "orders", "client.namespace": "shop"},
            "leave it out and write them whole, as topic=shop%orders",
        ),
    ],
)
def test_a_wrong_option_is_refused_with_the_cure(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(OptionError, match=re.escape(sentence)):
        parse_source(options)


def test_the_sink_asks_for_a_name() -> None:
    with pytest.raises(OptionError, match="appId is missing"):
        parse_sink({"topic": "t"})


def test_a_batch_that_no_broker_takes_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(
        OptionError, match="batchBytes is '8000000'; it must be a whole number from 1 to 4194304"
    ):
        parse_sink({"topic": "t", "appId": "job", "batchBytes": "8000000"})


def test_no_connection_wraps_names() -> None:
    """Once, the sink looked for repeats in `orders` but sent to `shop%orders`, and the source read `orders`."""
    options = {"topic": "orders", "appId": "job", "client.nameSpace": "shop"}

    with pytest.raises(OptionError, match=r"client\.namespace is 'shop'"):
        parse_sink(options)
    with pytest.raises(OptionError, match=r"client\.namespace is 'shop'"):
        Connect("east:9876", (("namespace", "shop"),)).settings()


def test_names_of_options_have_no_case_and_load_names_the_topic() -> None:
    found = parse_source(
        {"PATH": "orders", "ENDINGTIMESTAMP": "1970-01-01T00:00:01", "includebody": "false"}
    )

    assert (found.topics, found.end) == (
        ("orders",),
        Bound(word="timestamp", timestamp_ms=1000, strategy="latest"),
    )
    assert "body" not in found.columns


CONNECTION = {
    "bootstrap": "east:9876",
    "retryTimeout": "5s",
    "client.useTls": "true",
    "client.tls_verify_host": "False",
    "client.tls_ca_file": "/tls/ca.crt",
    "client.request_timeout": "2.5",
    "auth.accessKey": "12345678",
    "auth.secretKeyEnv": "SECRET",
}


def test_settings_of_the_client_have_the_types_that_it_wants(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Settings are truth values, numbers and texts of digits; the process that connects reads variables, not a check."""
    found = parse_source({"topic": "t", **CONNECTION}).connect
    with pytest.raises(OptionError, match="the environment variable SECRET is not set"):
        found.settings()
    monkeypatch.setenv("SECRET", "007")

    assert found.settings() == ClientSettings(
        use_tls=True,
        tls_verify_host=False,
        tls_ca_file="/tls/ca.crt",
        request_timeout=2.5,
        access_key="12345678",
        secret_key="007",
    )
    assert parse_connect(found.to_options()) == found


def connections(**spec: object) -> list[Connect]:
    """Return the connection of a pipeline to its cluster, or to its target."""
    found = parse_pipeline({"kind": "Pipeline", "metadata": {"name": "n"}, "spec": spec}).spec
    return [getattr(found, name) for name in ("connect", "target_connect") if hasattr(found, name)]


def test_every_pipeline_takes_the_options_of_a_connection() -> None:
    """Pipelines that read no topic take them, too; the target of a replay uses the source's connection or its own."""
    options = {name: value for name, value in CONNECTION.items() if name != "bootstrap"}
    where = {"bootstrap": "east:9876", "options": options}
    expected = parse_connect(CONNECTION)
    replay = {"type": "replay", "target": "copy", "checkpoint": "c"}
    source = {**where, "topic": "t"}

    assert connections(type="lag", topic="t", groups=["g"], **where) == [expected]
    assert connections(type="dead-letters", group="g", **where) == [expected]
    assert connections(type="redrive", group="g", plan="p", **where) == [expected]
    assert connections(**replay, source=source) == [expected]
    other = connections(**replay, source=source, targetBootstrap="west:9876")
    assert other == [Connect("west:9876")]
    assert connections(
        **replay, source={"topic": "t"}, targetBootstrap="east:9876", targetOptions=options
    ) == [expected]


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"type": "archiv"}, "did you mean archive?"),
        ({"type": "archive", "pth": "x"}, "did you mean path?"),
        ({"type": "archive"}, "source: Field required"),
        (
            {"type": "lag", "topic": "t", "groups": [], "options": {"topic": "u"}},
            "no option 'topic'",
        ),
        (
            {
                "type": "archive",
                "path": "x",
                "checkpoint": "y",
                "source": {"topic": "t", "options": {"maxOffsetPerTrigger": 5}},
            },
            "did you mean maxOffsetsPerTrigger?",
        ),
        *(
            (
                {"source": {"topic": "t"}, "checkpoint": "c", "trigger": "5min", **kind},
                "trigger: the duration is '5min'; write for example 500ms, 15s, 2m or 1h, or availableNow",
            )
            for kind in (
                {"type": "archive", "path": "p"},
                {"type": "mirror", "targetBootstrap": "west:9876"},
                {"type": "order-audit", "stream": True},
            )
        ),
        *(
            (
                {"type": "order-audit", "source": {"topic": "t", "options": {option: 5}}},
                f"source: options.{name}: the audit reads each queue completely",
            )
            for option, name in (
                ("tags", "tags"),
                ("minpartitions", "minPartitions"),
                ("maxRecordsPerPartition", "maxRecordsPerPartition"),
                ("valueFormat", "valueFormat"),
            )
        ),
    ],
)
def test_a_wrong_manifest_is_refused_with_the_place(spec: dict[str, object], sentence: str) -> None:
    document = {"kind": "Pipeline", "metadata": {"name": "n"}, "spec": spec}

    with pytest.raises(OptionError, match=re.escape(sentence)):
        parse_pipeline(document)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_well_formed(path: Path) -> None:
    assert read_pipeline(path).name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("endingOffsets", '{"orders": {"g": {"0": 10}}}'),
        ("endingTimestamp", "2026-01-31"),
        ("endingOffsetsByTimestamp", '{"orders": {"g": {"0": 10}}}'),
    ],
)
def test_a_stream_refuses_an_end(name: str, value: str) -> None:
    """A stream would read beyond the end; its manifest is refused when it is checked."""
    source = {"topic": "orders", name: value}
    with pytest.raises(OptionError, match=r"a stream has no end.*ending"):
        OrderlyMQDataSource(source).streamReader(StructType())
    spec = {"source": {"topic": "orders", "options": {name: value}}, "checkpoint": "c"}
    kinds: list[tuple[dict[str, Any], bool]] = [
        ({"type": "replay", "target": "copy"}, True),
        ({"type": "order-audit", "stream": True}, True),
        ({"type": "order-audit"}, False),
    ]
    for kind, refused in kinds:
        manifest = {"kind": "Pipeline", "metadata": {"name": "p"}, "spec": {**spec, **kind}}
        with pytest.raises(OptionError, match="a stream has no end") if refused else nullcontext():
            parse_pipeline(manifest)
