"""
Ensures that one driver uses a checkpoint.

On a file system, a lock refuses the second driver; it is released when the process ends for any reason. An object
store has no locks that end with a process. There each driver creates the next number under `drivers`, and earlier
drivers are refused at their next check. The work of both drivers until then stays correct: each sink commits a batch
once and refuses a different version of it.
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
_TRIES: Final = 100  # drivers that may start at the same moment


@dataclass(frozen=True, slots=True)
class Claim:
    """A driver's claim to a checkpoint; *number* is that of the driver, or None if a lock is held."""

    checkpoint: Location
    number: int | None = None

    def check(self) -> None:
        """Check that the claim still holds.

        Raises:
            CheckpointInUse: Another driver has started.
        """
        # Compare numbers: a third driver may have removed the second one's file.
        if self.number is not None and _last_number(self.checkpoint / _DRIVERS) > self.number:
            raise CheckpointInUse(
                f"another driver has begun on the checkpoint {self.checkpoint}, so this one has stopped; run one of "
                "them, or give this pipeline a checkpoint of its own"
            )


@contextmanager
def hold_checkpoint(checkpoint: Location) -> Iterator[Claim]:
    """Hold a checkpoint.

    Raises:
        CheckpointInUse: Another process on this file system holds it.
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
        f"{_TRIES} drivers have begun on the checkpoint {checkpoint} while this one tried to"
    )


def last_batch(spark: Location, log: str) -> int:
    """Return the last batch number in a log of Spark's: `offsets` for planned, `commits` for finished; -1 if none."""
    return _last_number(spark / log)


def _last_number(folder: Location) -> int:
    return max((int(name) for name in folder.names() if name.isdecimal()), default=-1)


def last_end(spark: Location) -> Any:
    """Return the end offsets of the last finished batch; None before the first one or for a newer log format."""
    batch = last_batch(spark, "commits")
    if batch < 0:
        return None
    # The file has a version, Spark's metadata, and one line for each source; here there is only one source.
    version, *_, end = (spark / "offsets" / str(batch)).read_text().splitlines()
    return json.loads(end) if version == "v1" else None
