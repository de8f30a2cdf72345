"""
Which objects differ from what is desired, without asking the API server to compare.

Pure. A desired object carries a fingerprint of itself. A live object is right when it has the same fingerprint and every
desired field. Fields that others added (defaults, injected containers) are left to them. So are desired fields that the API
server, or an admission rule, writes otherwise whenever the object is applied: `Answers` knows them.
"""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import ROUND_CEILING, Decimal
from typing import Any, Final

from orderlymq_operator.kube.objects.names import ANNOTATION_APPLIED
from orderlymq_operator.kube.resources import Json
from orderlymq_operator.plan.settings import revision_of
from orderlymq_operator.resources.quantities import quantity

_FINGERPRINT_LENGTH: Final = 16
# A volume may be mounted at several paths, so that mounts are no list by name.
_MERGE_KEYS: Final = ("mountPath", "name")
# An object that comes back otherwise is applied again after so long: the rule that did it may be gone.
TRIED_AGAIN_S: Final = 1_800.0


def stamped(made: Json) -> Json:
    """Return *made* with the fingerprint of itself among its annotations."""
    stamped_one = copy.deepcopy(made)
    stamped_one["metadata"].setdefault("annotations", {})[ANNOTATION_APPLIED] = fingerprint(made)
    return stamped_one


def fingerprint(made: Any) -> str:
    """Return a text that differs when *made* does."""
    return revision_of(made, _FINGERPRINT_LENGTH)


class Answers:
    """What became of objects that came back from their application otherwise than they are wanted.

    Args:
        clock: gives seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: dict[tuple[str, str], tuple[float, str, str]] = {}

    def note(self, made: Json, found: Json) -> bool:
        """Note the object that was *found* when *made* had been applied; return whether that is news."""
        before = self._known.pop(_identity(made), None)
        if contains(found, made):
            return True
        answer = fingerprint(made), fingerprint(_part(found, made))
        self._known[_identity(made)] = (self._clock(), *answer)
        return before is None or before[1:] != answer

    def is_right(self, live: Json, made: Json) -> bool:
        """Return whether *live* is as it is wanted, or as it came back a while ago."""
        if contains(live, made):
            return True
        at, *answer = self._known.get(_identity(made), (0.0, "", ""))
        is_recent = self._clock() - at < TRIED_AGAIN_S
        return is_recent and answer == [fingerprint(made), fingerprint(_part(live, made))]


def changes(
    wanted: Iterable[Json], live: Iterable[Json], answers: Answers | None = None
) -> list[Json]:
    """Return, stamped and in their order, the objects that must be applied."""
    present = {_identity(found): found for found in live}
    is_right = contains if answers is None else answers.is_right
    work = []
    for made in map(stamped, wanted):
        found = present.get(_identity(made))
        if found is None or not is_right(found, made):
            work.append(made)
    return work


def contains(live: Any, wanted: Any) -> bool:
    """Return whether *live* has everything that is *wanted*."""
    if isinstance(wanted, Mapping):
        if not isinstance(live, Mapping):
            return not wanted and live is None
        return all(contains(live.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return _contains_list(live, wanted)
    return live == wanted or _same_quantity(live, wanted)


def _contains_list(live: Any, wanted: list[Any]) -> bool:
    if not isinstance(live, list):
        return not wanted and live is None
    if key := _merge_key(wanted):
        # Others may have put theirs between ours.
        present = _by(key, live)
        return all(contains(present.get(item[key]), item) for item in wanted)
    return len(live) == len(wanted) and all(map(contains, live, wanted))


def _part(live: Any, wanted: Any) -> Any:
    """Return of *live* what stands in the place of what is *wanted*."""
    if isinstance(wanted, Mapping) and isinstance(live, Mapping):
        return {key: _part(live.get(key), value) for key, value in wanted.items()}
    if isinstance(wanted, list) and isinstance(live, list) and (key := _merge_key(wanted)):
        present = _by(key, live)
        return [_part(present.get(item[key]), item) for item in wanted]
    return live


def _by(key: str, items: Sequence[Any]) -> dict[str, Mapping[str, Any]]:
    return {str(item.get(key)): item for item in items if isinstance(item, Mapping)}


def _merge_key(items: Sequence[Any]) -> str | None:
    """Return the field by which Kubernetes merges *items*, of which each has its own; None where it keeps the list whole."""
    for key in _MERGE_KEYS:
        values = [item.get(key) if isinstance(item, Mapping) else None for item in items]
        distinct = {each for each in values if isinstance(each, str)}
        if items and len(distinct) == len(items):
            return key
    return None


def _same_quantity(live: Any, wanted: Any) -> bool:
    one, other = quantity(live), quantity(wanted)
    return one is not None and other is not None and _as_kept(one) == _as_kept(other)


def _as_kept(amount: Decimal) -> Decimal:
    """Return *amount* in thousandths: the API server rounds resources of containers up to whole ones."""
    return (amount * 1000).to_integral_value(ROUND_CEILING)


def _identity(found: Json) -> tuple[str, str]:
    return found["kind"], found["metadata"]["name"]
