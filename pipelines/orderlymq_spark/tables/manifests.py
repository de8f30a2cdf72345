"""
The commits of an archive: numbered manifests, each created by one writer and carried out by any.

A manifest lists which parts get which names and which files are removed. Rules: an existing manifest is a commit. Its
steps may be done several times, by several writers, in any order. All of them are done before the next manifest is
created. The writer of a manifest has therefore seen an archive without pending steps, and no other writer has
committed since. If two writers run by mistake, they cannot both pass.

Only a manifest removes a file that its writer did not create. A part that existed when its manifest was created
therefore exists until it gets its name. A reader sees the result of a manifest if it looks after that manifest is done
and before the next one (`settled`).
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, TypeVar

from orderlymq_spark.errors import SinkConflict, StoreFailed
from orderlymq_spark.locations.location import Location

MANIFESTS: Final = "_manifests"
PARTS: Final = "_parts"
OWN: Final = (MANIFESTS, PARTS)
"""The folders of an archive that are not topics; folders of topics may begin with the same character."""
_LATEST: Final = "latest"  # holds a number from which the last manifest is searched
DIGITS: Final = 20  # an offset has at most 19 digits, so names sort like numbers
_TRIES: Final = 100  # attempts; each may lose to another writer's commit, an archive's batch
_LOOK_AGAIN_S: Final = 1.0
_LOOKS_MAX: Final = (
    60  # of a reader that may not write; a large object is read and written again, not renamed
)

_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class Added:
    """A part that becomes a file of the archive.

    Attributes:
        path: its final path, relative to the archive's folder.
        part: its path until then, also relative.
        about: additional facts in the manifest, for readers.
    """

    path: str
    part: str
    about: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Manifest:
    """One commit.

    Attributes:
        app_id: the application; with *batch* it names the commit.
        removed: files to remove, relative to the archive's folder. They go before the added files appear, so that no
            row is seen twice.
    """

    app_id: str
    batch: int | None
    added: tuple[Added, ...]
    removed: tuple[str, ...] = ()

    @property
    def takes_away(self) -> bool:
        """Whether the manifest removes files that readers see, not only parts."""
        return not all(map(_is_part, self.removed))

    def to_text(self) -> str:
        """Return the manifest as JSON."""
        files = [{"path": each.path, "part": each.part, **each.about} for each in self.added]
        facts = {**asdict(self), "appId": self.app_id, "files": files}
        del facts["app_id"], facts["added"]
        return json.dumps(facts, indent=1)

    @classmethod
    def from_text(cls, text: str) -> "Manifest":
        """Read a manifest that `to_text` returned.

        Raises:
            SinkConflict: The text is not from a pipeline: it is not a manifest, or names a path outside the archive.
        """
        try:
            facts = json.loads(text)
            added = tuple(
                Added(_below(each.pop("path")), _below(each.pop("part")), each)
                for each in facts["files"]
            )
            removed = tuple(_below(each) for each in facts["removed"])
            return cls(facts["appId"], facts["batch"], added, removed)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise SinkConflict(
                f"a manifest of the archive was not written by a pipeline ({error!r}); replace it with the right one"
            ) from error


def _below(name: str) -> str:
    """Return the path of a file if it is inside the archive's folder.

    Raises:
        ValueError: The path is not inside.
    """
    if any(part in ("", ".", "..") for part in name.split("/")):
        raise ValueError(f"{name[:255]!r} is not a file of the archive")
    return name


def _is_part(name: str) -> bool:
    return name.startswith(f"{PARTS}/")


def commit(root: Location, make: Callable[[], Manifest | None]) -> None:
    """Commit the manifest that *make* returns; call *make* again if another writer was faster; it may then return None.

    Raises:
        SinkConflict: Other writers commit all the time; nothing was changed.
    """
    for _ in range(_TRIES):
        number = _last(root)
        if number is not None:
            _carry_out(root, _read(root, number))
        manifest = make()
        if manifest is None:
            return
        following = _next(number)
        if _place(root, following).create(manifest.to_text()):
            _carry_out(root, manifest)
            (root / MANIFESTS / _LATEST).write(str(following))
            return
    raise SinkConflict(
        f"other processes have written to the archive {root} {_TRIES} times while {make} was to be committed"
    )


def finish(root: Location) -> None:
    """Carry out the last commit, because its writer may have died."""
    commit(root, lambda: None)


def settled(root: Location, look: Callable[[], _Found]) -> _Found:
    """Return the result of *look* from a moment in which no commit removes files.

    A reader with write permission first carries out the last commit. Commits that only add files may happen meanwhile;
    the files that they add come after all existing ones.

    Raises:
        SinkConflict: Other writers remove files all the time, or an unfinished commit is not carried out.
    """
    for _ in range(_TRIES):
        number = _last(root)
        if number is not None:
            _see_carried_out(root, _read(root, number))
        found = look()
        following = range(_next(number), _next(_last(root)))
        if not any(_read(root, each).takes_away for each in following):
            return found
    raise SinkConflict(
        f"other processes have written to the archive {root} {_TRIES} times while it was read"
    )


def _next(number: int | None) -> int:
    return 0 if number is None else number + 1


def _read(root: Location, number: int) -> Manifest:
    return Manifest.from_text(_place(root, number).read_text())


def _see_carried_out(root: Location, manifest: Manifest) -> None:
    try:
        _carry_out(root, manifest)
        return
    except (OSError, StoreFailed) as error:
        reason = error
    for _ in range(_LOOKS_MAX):
        if not any(root.each(lambda each: each.exists(), _pending(root, manifest))):
            return
        time.sleep(_LOOK_AGAIN_S)
    raise SinkConflict(
        f"the last commit of the archive {root}, of {manifest.app_id}, is not finished, and this process may not "
        f"finish it ({reason}); run that pipeline again"
    ) from reason


def _pending(root: Location, manifest: Manifest) -> list[Location]:
    """Return the files that a commit still has to remove or move; if a part has its name, only the removal is left."""
    named = root.each(lambda each: (root / each.path).exists(), manifest.added)
    unnamed = [each for each, there in zip(manifest.added, named, strict=True) if not there]
    return [root / name for name in (*manifest.removed, *(each.part for each in unnamed))]


def _last(root: Location) -> int | None:
    """Return the number of the last manifest; None before the first one."""
    try:
        number = int((root / MANIFESTS / _LATEST).read_text())
    except FileNotFoundError:
        numbers = [name for name in (root / MANIFESTS).names() if name.endswith(".json")]
        if not numbers:
            return None
        number = int(max(numbers).removesuffix(".json"))
    while _place(root, number + 1).exists():
        number += 1
    return number


def _place(root: Location, number: int) -> Location:
    return root / MANIFESTS / f"{number:0{DIGITS}}.json"


def _carry_out(root: Location, manifest: Manifest) -> None:
    """Do the steps of a commit; completed steps have no further effect."""
    root.each(lambda name: (root / name).delete(), manifest.removed)
    root.each(lambda each: (root / each.part).move(root / each.path), manifest.added)
    left: Sequence[str] = [*manifest.removed, *(each.part for each in manifest.added)]
    for folder in sorted({name.rpartition("/")[0] for name in left if _is_part(name)}):
        (root / folder).prune()
