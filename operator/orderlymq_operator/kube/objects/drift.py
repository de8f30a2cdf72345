"""
Which objects differ from what is desired, without asking the API server to compare.

Pure. A desired object carries a fingerprint of itself. A live object is right when it has the same fingerprint and every
desired field. Fields that others added (defaults, injected containers) are left to them.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_CEILING, Decimal
from typing import Any, Final

from orderlymq_operator.kube.objects.names import ANNOTATION_APPLIED
from orderlymq_operator.kube.resources import Json
from orderlymq_operator.plan.settings import revision_of
from orderlymq_operator.resources.quantities import quantity

_FINGERPRINT_LENGTH: Final = 16
# A volume may be mounted at several paths, so that mounts are no list by name.
_MERGE_KEYS: Final = ("mountPath", "name")


def stamped(made: Json) -> Json:
    """Return *made* with the fingerprint of itself among its annotations."""
    stamped_one = copy.deepcopy(made)
    stamped_one["metadata"].setdefault("annotations", {})[ANNOTATION_APPLIED] = fingerprint(made)
    return stamped_one


def fingerprint(made: Any) -> str:
    """Return a text that differs when *made* does."""
    return revision_of(made, _FINGERPRINT_LENGTH)


def changes(wanted: Iterable[Json], live: Iterable[Json]) -> list[Json]:
    """Return, stamped and in their order, the objects that must be applied."""
    present = {_identity(found): found for found in live}
    work = []
    for made in map(stamped, wanted):
        found = present.get(_identity(made))
        if found is None or not contains(found, made):
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
        present = {str(item.get(key)): item for item in live if isinstance(item, Mapping)}
        return all(contains(present.get(item[key]), item) for item in wanted)
    return len(live) == len(wanted) and all(map(contains, live, wanted))


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
