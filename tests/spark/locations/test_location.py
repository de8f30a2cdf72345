"""Texts that are locations wherever a path is read; no address becomes a local folder by mistake."""

from pathlib import Path
from typing import get_type_hints

import pytest
from pyspark.sql.types import StructType

from orderlymq_spark.errors import OptionError
from orderlymq_spark.frames import read_stream
from orderlymq_spark.locations.addresses import LocationField, location
from orderlymq_spark.options import parse_source
from orderlymq_spark.specs import SPECS, ArchiveSpec, parse_pipeline
from orderlymq_spark.tables.archive import ArchiveDataSource

UNKNOWN = (
    "S3://bucket",
    "hdfs:/x",
    "hdfs://x/y",
    "dbfs:/x",
    "file:///x",
    "wasbs://c@a/x",
    "http://h/x",
)
FIELDS = [
    (kind, name)
    for kind, model in SPECS.items()
    for name, hint in get_type_hints(model, include_extras=True).items()
    if "Path" in str(hint) or "Location" in str(hint)
]


@pytest.mark.parametrize("address", UNKNOWN)
def test_an_unknown_scheme_is_refused_with_the_known_ones(address: str) -> None:
    """An address with an unknown scheme is refused even after it was turned into a `Path`."""
    for given in (address, Path(address), Path("s3a://bucket/x")):
        with pytest.raises(
            OptionError,
            match=r"the scheme \w+: is not supported; supported are s3a://, s3://, gs://, abfss:// and",
        ):
            location(given)


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("s3a://bucket/a/b", ("s3a://bucket/a", "b")),
        ("s3://bucket/a/", ("s3://bucket/", "a")),
        ("gs://b/x", ("gs://b/", "x")),
        ("abfss://c@a.dfs.core.windows.net/x/y", ("abfss://c@a.dfs.core.windows.net/x", "y")),
    ],
)
def test_an_address_is_a_place_in_a_bucket(address: str, parts: tuple[str, str]) -> None:
    found = location(address)

    assert (str(found.parent), found.name) == parts
    assert str(found / "z") == f"{address.rstrip('/')}/z"


@pytest.mark.parametrize(
    "address", ["s3a:///x", "s3a:/bucket/x", "s3a://b//x", "s3a://b/../x", "gs://b/./x"]
)
def test_an_address_without_a_bucket_or_with_odd_parts_is_refused(address: str) -> None:
    with pytest.raises(OptionError, match=r"an address looks like \w+://bucket/folder"):
        location(address)


@pytest.mark.parametrize("path", ["/data/x", "data/x", "10:30/x", "a/b:/c", "~/x", "."])
def test_a_path_stays_what_it_is(path: str) -> None:
    assert str(location(path)) == str(location(Path(path))) == path


def test_every_path_of_every_pipeline_is_a_place() -> None:
    """A new field of a path cannot be forgotten."""
    assert len(FIELDS) >= 12
    for kind, name in FIELDS:
        hint = get_type_hints(SPECS[kind], include_extras=True)[name]
        assert LocationField in (hint, *getattr(hint, "__args__", ())), (kind, name)


def manifest(path: str) -> dict[str, object]:
    spec = {"type": "archive", "source": {"topic": "T"}, "checkpoint": "/data/c", "path": path}
    return {"kind": "Pipeline", "metadata": {"name": "a"}, "spec": spec}


def test_a_manifest_with_an_unknown_scheme_is_refused_with_the_field() -> None:
    with pytest.raises(OptionError, match="path: hdfs://n/x: the scheme hdfs: is not supported"):
        parse_pipeline(manifest("hdfs://n/x"))
    found = parse_pipeline(manifest("s3a://bucket/x")).spec
    assert isinstance(found, ArchiveSpec)
    assert str(found.path) == "s3a://bucket/x"


def test_options_and_streams_refuse_unknown_schemes_too() -> None:
    """Checked are options of the source, of the archive's sink, and of a stream's checkpoint."""
    for name in ("dataLossPath", "startPath"):
        assert parse_source({"topic": "T", name: "s3a://bucket/x"})
        with pytest.raises(OptionError, match="scheme hdfs"):
            parse_source({"topic": "T", name: "hdfs://n/x"})
    with pytest.raises(OptionError, match="scheme hdfs"):
        read_stream(None, "hdfs://n/x", topic="T")  # type: ignore[arg-type]  # refused before Spark is asked
    with pytest.raises(OptionError, match="scheme hdfs"):
        ArchiveDataSource({"path": "hdfs://n/x", "appId": "a"}).streamWriter(
            StructType([]), overwrite=False
        )
