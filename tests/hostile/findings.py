"""Findings of a run: one line per kind of problem, with the first case that shows it and the command that repeats it."""

import re
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.hostile.cases import Case

_ROOT: Final = Path(__file__).parents[2]
_NUMBERS: Final = re.compile(r"\d+")


@dataclass(slots=True)
class Finding:
    """One kind of problem.

    Attributes:
        law: the law that is broken.
        where: distinguishes problems with the same law: a place in the sources, or a code.
        detail: of the first case.
        repeat: the command that shows it again.
    """

    law: str
    where: str
    detail: str
    repeat: str
    count: int = 1
    codes: set[int] = field(default_factory=set)


class Findings:
    """All findings of a run."""

    def __init__(self, say: Callable[[str], None] = lambda _: None) -> None:
        self._say = say
        self._found: dict[tuple[str, str], Finding] = {}

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[Finding]:
        return iter(sorted(self._found.values(), key=lambda each: (each.law, each.where)))

    def add(self, law: str, where: str, detail: str, repeat: str, code: int | None = None) -> bool:
        """Record a problem; return whether its kind is new."""
        found = self._found.get((law, where))
        is_new = found is None
        if found is None:
            found = self._found[(law, where)] = Finding(law, where, detail[:400], repeat)
            # Printed immediately: a run may take an hour, and be killed.
            self._say(f"{law}: {where}: {detail[:120]!r}: {repeat}")
        else:
            found.count += 1
        if code is not None:
            found.codes.add(code)
        return is_new


def place_of(error: BaseException) -> str:
    """Return the error's type and the innermost line of our own packages that it passed."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [
        each
        for each in frames
        if Path(each.filename).is_relative_to(_ROOT)
        and "/tests/" not in each.filename
        and "/.venv/" not in each.filename
    ]
    place = ours[-1] if ours else frames[-1]
    path = Path(place.filename)
    name = path.relative_to(_ROOT) if path.is_relative_to(_ROOT) else path.name
    return f"{type(error).__name__} in {name}:{place.name}"


def shown(case: Case) -> str:
    """Return one line about a case."""
    return f"{case.server} {case.code}, {case.kind}, signed by {case.signer}: {case.frame[8:600]!r}"
