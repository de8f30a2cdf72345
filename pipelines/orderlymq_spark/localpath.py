"""
Paths of checkpoints, archives, tables, plans and reports: all on a file system that is mounted here.

Rule: an address of an object store is refused. Taken as a path, `s3a://bucket/x` is the folder `s3a:/bucket/x`
of the working directory, which ends with the driver's container.
"""

import re
from pathlib import Path
from typing import Annotated, Final

from pydantic import BeforeValidator

from orderlymq_spark.errors import OptionError

# One slash is enough: a `Path` that was made of an address has lost the other.
_ADDRESS: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")


def local_path(given: str | Path) -> Path:
    """Return the path.

    Raises:
        OptionError: It is an address with a scheme.
    """
    found = _ADDRESS.match(str(given))
    if found is not None:
        raise OptionError(
            f"{given}: the scheme {found[1]}: is not supported; supported are paths of a mounted file "
            "system without a scheme, as /data/archive or data/archive"
        )
    return Path(given)


def _checked(given: object) -> object:
    return local_path(given) if isinstance(given, str | Path) else given


LocalPath = Annotated[Path, BeforeValidator(_checked)]
"""A field of a spec."""
