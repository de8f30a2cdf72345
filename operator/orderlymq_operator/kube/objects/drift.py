"""
Finds objects that differ from the desired ones, without a comparison by the API server.

Pure. A desired object contains a fingerprint of itself. A live object is right if it has the same fingerprint and every
desired field. Fields that others add (defaults, injected containers) are ignored. Desired fields that the API server or
an admission rule changes at each apply are ignored, too: `Answers` knows them.
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
# Volume mounts are matched by path first, because a volume may be mounted at several paths.
_MERGE_KEYS: Final = ("mountPath", "name")
# An object that comes back changed is applied again after this time, because the rule that changes it may be gone.
TRIED_AGAIN_S: Final = 1_800.0


def stamped(made: Json) -> Json:
    """Return *made* with its fingerprint as an annotation."""
    stamped_one = copy.deepcopy(made)
    stamped_one["metadata"].setdefault("annotations", {})[ANNOTATION_APPLIED] = fingerprint(made)
    return stamped_one


def fingerprint(made: Any) -> str:
    """Return a text that changes when *made* changes."""
    return revision_of(made, _FINGERPRINT_LENGTH)


class Answers:
    """Objects that the API server returned changed when the operator applied them.

    Args:
        clock: returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: dict[tuple[str, str], tuple[float, str, str]] = {}

    def note(self, made: Json, found: Json) -> bool:
        """Note the object *found* that an apply of *made* returned; return False if it differs as it did before."""
        before = self._known.pop(_identity(made), None)
        if contains(found, made):
            return True
        answer = fingerprint(made), fingerprint(_part(found, made))
        self._known[_identity(made)] = (self._clock(), *answer)
        return before is None or before[1:] != answer

    def is_right(self, live: Json, made: Json) -> bool:
        """Return whether *live* has every desired field, or is as the API server recently returned it."""
        if contains(live, made):
            return True
        at, *answer = self._known.get(_identity(made), (0.0, "", ""))
        is_recent = self._clock() - at < TRIED_AGAIN_S
        return is_recent and answer == [fingerprint(made), fingerprint(_part(live, made))]


def changes(
    wanted: Iterable[Json], live: Iterable[Json], answers: Answers | None = None
) -> list[Json]:
    """Return the objects that must be applied, with their fingerprints and in their order."""
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
        # Others may have inserted items of their own.
        present = _by(key, live)
        return all(contains(present.get(item[key]), item) for item in wanted)
    return len(live) == len(wanted) and all(map(contains, live, wanted))


def _part(live: Any, wanted: Any) -> Any:
    """Return the parts of *live* that correspond to *wanted*."""
    if isinstance(wanted, Mapping) and isinstance(live, Mapping):
        return {key: _part(live.get(key), value) for key, value in wanted.items()}
    if isinstance(wanted, list) and isinstance(live, list) and (key := _merge_key(wanted)):
        present = _by(key, live)
        return [_part(present.get(item[key]), item) for item in wanted]
    return live


def _by(key: str, items: Sequence[Any]) -> dict[str, Mapping[str, Any]]:
    return {str(item.get(key)): item for item in items if isinstance(item, Mapping)}


def _merge_key(items: Sequence[Any]) -> str | None:
    """Return the field by which Kubernetes merges *items*, if it is unique; None if it replaces the whole list."""
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
    """Return *amount* in thousandths, rounded up as the API server rounds container resources."""
    return (amount * 1000).to_integral_value(ROUND_CEILING)


def _identity(found: Json) -> tuple[str, str]:
    return found["kind"], found["metadata"]["name"]
