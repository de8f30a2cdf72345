"""
Which place an address names: a path of a mounted file system, or an object store.

Rules: an unknown scheme is refused: taken as a path, `hdfs://x/y` is the folder `hdfs:/x/y` of the working directory, which
ends with the driver's container. Nothing heavy is imported until an address needs it: Spark loads the sinks again for every
batch, in processes of their own.
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
# One slash is enough: a `Path` that was made of an address has lost the other.
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
            f"{given}: the scheme {found[1]}: is not supported; supported are {addresses} and paths of a mounted "
            "file system without a scheme, as /data/archive or data/archive"
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
    """Return the one spelling of a place: two with the same are one place. A mount under two names is known to nobody.

    Raises:
        OptionError: As `location`.
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
