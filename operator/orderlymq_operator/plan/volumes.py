"""
Sizes of volumes, which grow before they are full.

Pure. Rules: all volumes of a raft group have one size, because each replica holds the whole log. They grow by one
step when one of the raft group's disks is used beyond the threshold, and not again before every volume has the size
that it requested. The effective threshold is below the use at which brokers refuse sends, because beyond that a disk
hardly fills.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from orderlymq_operator.resources.autogrow import AutoGrow
from orderlymq_operator.resources.kinds import Cluster

# Points below config.diskMaxUsedSpaceRatio: brokers refuse backups two points below it, and growth takes time.
GROWTH_MARGIN: Final = 5
_UNITS: Final = (("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10))


@dataclass(frozen=True, slots=True)
class Volume:
    """One volume, in bytes; *used* is the used share of its disk, None if not known."""

    requested: int
    capacity: int
    used: float | None


def growth_of(cluster: Cluster) -> AutoGrow | None:
    """Return how volumes grow, with the effective threshold; None if they do not grow."""
    growth = cluster.spec.storage.auto_grow
    if growth is None:
        return None
    reached = cluster.spec.config.disk_max_used_space_ratio - GROWTH_MARGIN
    return growth.model_copy(update={"threshold": min(growth.threshold, reached)})


def wanted_size(size: int, growth: AutoGrow | None, volumes: Collection[Volume]) -> int:
    """Return how many bytes each volume of a raft group should have, if the manifest's size is *size*."""
    if growth is None:
        return size
    present = max([size, *(volume.requested for volume in volumes)])
    settled = all(volume.capacity >= volume.requested >= present for volume in volumes)
    if not volumes or not settled or not _is_full(growth, volumes):
        return present
    return max(present, min(present + growth.step.size_bytes, growth.limit.size_bytes))


def is_exhausted(size: int, growth: AutoGrow, volumes: Collection[Volume]) -> bool:
    """Return whether a raft group is beyond the threshold and may not grow any more."""
    grown = wanted_size(size, growth, volumes)
    return grown >= growth.limit.size_bytes and _is_full(growth, volumes)


def size_text(size: int) -> str:
    """Return a number of bytes in the notation of manifests."""
    for unit, factor in _UNITS:
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


def _is_full(growth: AutoGrow, volumes: Collection[Volume]) -> bool:
    return any(
        volume.used is not None and 100 * volume.used >= growth.threshold for volume in volumes
    )
