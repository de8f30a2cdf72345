"""The planting of a defect, and its removal."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

_MISSING = object()


class Bed:
    """Collects patches of classes and modules, and undoes them."""

    def __init__(self) -> None:
        self._former: list[tuple[object, str, object]] = []

    def put(self, owner: object, name: str, value: object) -> None:
        """Replace an attribute of *owner* itself, not an inherited one."""
        self._former.append((owner, name, vars(owner).get(name, _MISSING)))
        if self._former[-1][2] is _MISSING:
            raise AttributeError(f"{owner} has no {name} of its own: the defect is out of date")
        setattr(owner, name, value)

    def clear(self) -> None:
        """Undo all patches, the last one first."""
        while self._former:
            owner, name, value = self._former.pop()
            setattr(owner, name, value)


@dataclass(frozen=True, slots=True)
class Defect:
    """A way to break the product.

    Attributes:
        name: what goes wrong, in a few words.
        law: the law that it breaks.
        where: the core that it is planted in.
        changes: fixed fields of the plan (``plan.py``) in the search for the defect.
    """

    name: str
    law: str
    where: str
    plant: Callable[[Bed], Any]
    changes: Mapping[str, Any] = field(default_factory=dict)

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Plant the defect for the duration of the block."""
        bed = Bed()
        try:
            self.plant(bed)
            yield
        finally:
            bed.clear()


class Catalogue:
    """Defects in the order in which they were written."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.defects: list[Defect] = []

    def defect(
        self, name: str, law: str, changes: Mapping[str, Any] | None = None
    ) -> Callable[[Callable[[Bed], Any]], Callable[[Bed], Any]]:
        """Register the decorated function as a defect; *changes* make its situation certain."""

        def add(plant: Callable[[Bed], Any]) -> Callable[[Bed], Any]:
            self.defects.append(Defect(name, law, self.where, plant, changes or {}))
            return plant

        return add
