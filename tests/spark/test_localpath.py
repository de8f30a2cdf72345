"""Addresses of object stores are refused wherever a path is read, and never become local folders."""

from pathlib import Path
from typing import get_type_hints

import pytest
from pyspark.sql.types import StructType

from orderlymq_spark.errors import OptionError
from orderlymq_spark.frames import read_stream
from orderlymq_spark.localpath import LocalPath, local_path
from orderlymq_spark.options import parse_source
from orderlymq_spark.specs import SPECS, parse_pipeline
from orderlymq_spark.tables.archive import ArchiveDataSource

ADDRESSES = (
    "s3a://bucket/x",
    "s3a:/bucket/x",
    "S3://bucket",
    "gs://b/x",
    "abfss://c@a.dfs.core.windows.net/x",
    "hdfs:/x",
    "dbfs:/x",
    "file:///x",
)
FIELDS = [
    (kind, name)
    for kind, model in SPECS.items()
    for name, hint in get_type_hints(model, include_extras=True).items()
    if "Path" in str(hint)
]


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_is_refused_by_its_scheme(address: str) -> None:
    """Also one that a `Path` was made of before."""
    for given in (address, Path(address)):
        with pytest.raises(OptionError, match=r"the scheme \w+: is not supported; supported are"):
            local_path(given)


@pytest.mark.parametrize("path", ["/data/x", "data/x", "10:30/x", "a/b:/c", "~/x", "."])
def test_a_path_stays_what_it_is(path: str) -> None:
    assert local_path(path) == Path(path)


def test_every_path_of_every_pipeline_is_a_local_one() -> None:
    """A new field cannot forget it."""
    assert len(FIELDS) >= 12
    for kind, name in FIELDS:
        hint = get_type_hints(SPECS[kind], include_extras=True)[name]
        assert LocalPath in (hint, *getattr(hint, "__args__", ())), (kind, name)


def test_a_manifest_with_an_address_is_refused_with_the_field() -> None:
    spec = {
        "type": "archive",
        "source": {"topic": "T"},
        "checkpoint": "/data/checkpoint",
        "path": "s3a://bucket/x",
    }
    manifest = {"kind": "Pipeline", "metadata": {"name": "a"}, "spec": spec}

    with pytest.raises(OptionError, match="path: s3a://bucket/x: the scheme s3a: is not supported"):
        parse_pipeline(manifest)


def test_options_and_streams_refuse_addresses_too() -> None:
    """Of the source, of the archive's sink, and of a stream's checkpoint."""
    for name in ("dataLossPath", "startPath"):
        with pytest.raises(OptionError, match="scheme s3a"):
            parse_source({"topic": "T", name: "s3a://bucket/x"})
    with pytest.raises(OptionError, match="scheme s3a"):
        read_stream(None, "s3a://bucket/x", topic="T")  # type: ignore[arg-type]  # refused before Spark is asked
    with pytest.raises(OptionError, match="scheme s3a"):
        ArchiveDataSource({"path": "s3a://b/x", "appId": "a"}).streamWriter(
            StructType([]), overwrite=False
        )
