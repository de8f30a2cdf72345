"""
Parses an address to a place: a path on a mounted file system, or an object store.

Rules: an unknown scheme is refused. As a path, `hdfs://x/y` would be the folder `hdfs:/x/y` in the working directory,
which ends with the driver's container. Heavy modules are imported only when an address needs them, because Spark
loads the sinks again for every batch, in separate processes.
"""

import os
import re
from pathlib import Path
from typing import Annotated, Final

from pydantic import PlainValidator

from orderlymq_spark.errors import OptionError
from orderlymq_spark.locations.local import LocalLocation
from orderlymq_spark.locations.location import Location

SCHEMES: Final = ("s3a", "s3", "gs", "abfss")
# Match one slash, because a `Path` made from an address has lost the second one.
_ADDRESS: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
_OBJECT: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/]+)(?:/(.*))?", re.DOTALL)


def location(given: str | Path | Location) -> Location:
    """Return the place that a path or an address names.

    Raises:
        OptionError: The scheme is unknown, or the address names no bucket.
    """
    if isinstance(given, Location):
        return given
    text = str(given)
    found = _ADDRESS.match(text)
    if found is None:
        return LocalLocation(text)
    if found[1] not in SCHEMES or isinstance(given, Path):
        addresses = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise OptionError(
            f"{given}: the scheme {found[1]}: is not supported; supported are {addresses} and paths of a "
            "mounted file system without a scheme, such as /data/archive or data/archive"
        )
    parts = _OBJECT.fullmatch(text)
    key = (parts[3] or "").rstrip("/") if parts is not None else ""
    if parts is None or any(name in ("", ".", "..") for name in key.split("/") if key):
        raise OptionError(
            f"{given}: an address looks like {found[1]}://bucket/folder, without empty parts, . and .."
        )
    from orderlymq_spark.locations.objects import ObjectLocation  # noqa: PLC0415 - heavy

    return ObjectLocation(parts[1], parts[2], key)


def canonical(given: str | Path | Location) -> str:
    """Return the canonical spelling of a place: equal spellings are one place. Two mounts of one place are not recognised.

    Raises:
        OptionError: As in `location`.
    """
    place = location(given)
    if isinstance(place, LocalLocation):
        return os.path.realpath(place)
    return str(place).replace("s3a://", "s3://", 1)


def _checked(given: object) -> Location:
    if not isinstance(given, str | Path | Location):
        raise ValueError("must be a path or an address")
    return location(given)


LocationField = Annotated[Location, PlainValidator(_checked)]
"""A field of a spec."""
