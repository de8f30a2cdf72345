"""
Which objects differ from what is desired, without asking the API server to compare.

Pure. A desired object carries a fingerprint of itself. A live object is right when it has the same fingerprint and every
desired field. Fields that others added (defaults, injected containers) are left to them.
"""

import copy
from collections.abc import Iterable, Mapping
from typing import Any, Final

from orderlymq_operator.kube.objects.names import ANNOTATION_APPLIED
from orderlymq_operator.kube.resources import Json
from orderlymq_operator.plan.settings import revision_of
from orderlymq_operator.resources.quantities import quantity

_FINGERPRINT_LENGTH: Final = 16


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
    if wanted and all(isinstance(item, Mapping) and "name" in item for item in wanted):
        # Lists that Kubernetes merges by name: others may have put theirs between ours.
        by_name = {item.get("name"): item for item in live if isinstance(item, Mapping)}
        return all(contains(by_name.get(item["name"]), item) for item in wanted)
    return len(live) == len(wanted) and all(map(contains, live, wanted))


def _same_quantity(live: Any, wanted: Any) -> bool:
    one, other = quantity(live), quantity(wanted)
    return one is not None and one == other


def _identity(found: Json) -> tuple[str, str]:
    return found["kind"], found["metadata"]["name"]
