"""Options and manifests: what is wrong is named, with what would be right."""

import re
from pathlib import Path

import pytest

from orderlymq_spark.errors import OptionError
from orderlymq_spark.options import Bound, parse_duration_ms, parse_sink, parse_source
from orderlymq_spark.specs import parse_pipeline, read_pipeline

EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "pipelines").glob("*.yaml"))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"topic": "t", "startingOffset": "latest"}, "did you mean startingOffsets?"),
        ({"topic": "t", "startingOffsets": "first"}, "must be earliest or latest or group"),
        ({"topic": "t", "startingOffsets": "{"}, "startingOffsets is no JSON"),
        ({"topic": "t", "startingOffsets": "group"}, "go together"),
        ({"topic": "t", "startingOffsets": "latest", "startingTimestamp": "1"}, "not both"),
        ({"topic": "t", "startingTimestamp": "1", "startingOffsetsByTimestamp": "{}"}, "not both"),
        ({"topic": "t", "startingOffsetsByTimestamp": '{"t": 5}'}, "must look like"),
        ({"topic": "t", "maxRecordsPerPartition": "x"}, "a whole number from 1 on"),
        ({"topic": "t", "startingTimestamp": "noon"}, "startingTimestamp is 'noon'"),
        ({"topic": "t", "maxOffsetsPerTrigger": "0"}, "a whole number from 1 on"),
        ({"topic": "t", "topicsPattern": "x"}, "give one of topic"),
        ({}, "give one of topic"),
        ({"topicsPattern": "("}, "no regular expression"),
        ({"topic": "t", "columns": "boddy"}, "did you mean body?"),
        ({"topic": "t", "tags": "||"}, "names no tag"),
        ({"topic": "t", "failOnDataLoss": "yes"}, "true or false"),
    ],
)
def test_a_wrong_option_is_refused_with_the_cure(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(OptionError, match=re.escape(sentence)):
        parse_source(options)


def test_the_sink_asks_for_a_name() -> None:
    with pytest.raises(OptionError, match="appId is missing"):
        parse_sink({"topic": "t"})


def test_names_of_options_have_no_case_and_load_names_the_topic() -> None:
    found = parse_source(
        {"PATH": "orders", "ENDINGTIMESTAMP": "1970-01-01T00:00:01", "includebody": "false"}
    )

    assert (found.topics, found.end) == (
        ("orders",),
        Bound(word="timestamp", timestamp_ms=1000, strategy="latest"),
    )
    assert "body" not in found.columns


def test_durations() -> None:
    assert [parse_duration_ms(each) for each in ("500ms", "15s", "1.5m", "2h")] == [
        *(500, 15_000, 90_000, 7_200_000)
    ]


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"type": "archiv"}, "did you mean archive?"),
        ({"type": "archive", "pth": "x"}, "did you mean path?"),
        ({"type": "archive"}, "source: Field required"),
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
                {"type": "order-audit", "source": {"topic": "t", "options": {option: 5}}},
                f"source: options.{name}: the audit reads each queue whole",
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
