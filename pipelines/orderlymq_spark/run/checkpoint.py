"""
One driver per checkpoint.

On a file system a lock refuses the second driver and ends with the process, however it ends. An object store knows of no
process: there each driver creates the next number below `drivers`, and those before it are refused when they look. What
both have done until then stays right: each sink commits a batch once, and refuses another cut of it.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from orderlymq_spark.errors import CheckpointInUse
from orderlymq_spark.locations.local import LocalLocation
from orderlymq_spark.locations.location import Location

_DRIVERS: Final = "drivers"
_DIGITS: Final = 12
_TRIES: Final = 100  # drivers that begin in the same moment


@dataclass(frozen=True, slots=True)
class Claim:
    """A driver's right to a checkpoint; *number* is that of the driver, None where a lock holds."""

    checkpoint: Location
    number: int | None = None

    def check(self) -> None:
        """Look whether it still holds.

        Raises:
            CheckpointInUse: Another driver has begun.
        """
        # A third driver has removed what the second one created.
        if self.number is not None and _last_number(self.checkpoint / _DRIVERS) > self.number:
            raise CheckpointInUse(
                f"another driver has begun on the checkpoint {self.checkpoint}, so this one has stopped; run one of "
                "them, or give this pipeline a checkpoint of its own"
            )


@contextmanager
def hold_checkpoint(checkpoint: Location) -> Iterator[Claim]:
    """Hold a checkpoint.

    Raises:
        CheckpointInUse: Another process of this file system holds it.
    """
    if not isinstance(checkpoint, LocalLocation):
        yield _claim(checkpoint)
        return
    path = Path(checkpoint)
    path.mkdir(parents=True, exist_ok=True)
    with (path / "driver.lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CheckpointInUse(
                f"another driver works on the checkpoint {checkpoint}; stop it first, or give this "
                "pipeline a checkpoint of its own"
            ) from None
        yield Claim(checkpoint)


def _claim(checkpoint: Location) -> Claim:
    drivers = checkpoint / _DRIVERS
    name = f"{os.uname().nodename} {os.getpid()} {uuid4().hex}"
    before = [each for each in drivers.names() if each.isdecimal()]
    number = int(max(before)) + 1 if before else 0
    for mine in range(number, number + _TRIES):
        if (drivers / f"{mine:0{_DIGITS}}").create(name):
            drivers.each(lambda each: (drivers / each).delete(), before)
            return Claim(checkpoint, mine)
    raise CheckpointInUse(
        f"{_TRIES} drivers have begun on the checkpoint {checkpoint} while this one did"
    )


def last_batch(spark: Location, log: str) -> int:
    """Return the number of the last batch in a log of Spark's: planned in `offsets`, done in `commits`; -1 for none."""
    return _last_number(spark / log)


def _last_number(folder: Location) -> int:
    return max((int(name) for name in folder.names() if name.isdecimal()), default=-1)


def last_end(spark: Location) -> Any:
    """Return the offsets at which the last batch that is done ends; None before a first one, or in a form of later Sparks."""
    batch = last_batch(spark, "commits")
    if batch < 0:
        return None
    # A version, what Spark says of the batch, and then a line for each source: here for the only one.
    version, *_, end = (spark / "offsets" / str(batch)).read_text().splitlines()
    return json.loads(end) if version == "v1" else None
