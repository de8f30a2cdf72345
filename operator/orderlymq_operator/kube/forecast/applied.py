"""
The object after a manifest is applied over it, as `kubectl apply` merges both.

Pure. Rule: what stands there stays, defaults of the schema included, unless the manifest says otherwise. What former applies
wrote goes where the manifest says it no more, with all below it that nobody else wrote. A list is one value.
"""

import json
from collections.abc import Sequence
from typing import Any

from orderlymq_operator.kube.api import ApiError
from orderlymq_operator.kube.observe.inventory import LAST_APPLIED
from orderlymq_operator.kube.resources import Json
from orderlymq_operator.resources.kinds import Resource


def applied(manifest: Resource, found: Json) -> Json:
    """Return *found*, an object of the API server, with spec and annotations as they are after the apply.

    Raises:
        ApiError: The former manifest, which kubectl keeps in an annotation, cannot be read; kubectl refuses it, too.
    """
    meta = found["metadata"]
    notes = meta.get("annotations") or {}
    spec = manifest.model_dump(mode="json", exclude_unset=True)["spec"]
    written = {"metadata": {"annotations": manifest.metadata.annotations}, "spec": spec}
    present = {"metadata": {"annotations": notes}, "spec": found.get("spec") or {}}
    if LAST_APPLIED in notes:
        after = _merged(present, _former(notes[LAST_APPLIED], meta["name"]), {}, written)
    else:
        managers = meta.get("managedFields") or ()
        after = _merged(present, _owned(managers, "Apply"), _owned(managers, "Update"), written)
    annotations = after["metadata"].get("annotations", {})
    return {**found, "metadata": {**meta, "annotations": annotations}, "spec": after["spec"]}


def _merged(present: Json, former: Json, others: Json, written: Json) -> Json:
    """Return *present* with what is *written*; of what was *former*ly written only that stays which *others* wrote, too."""
    after = dict(present)
    for name, value in former.items():
        if name not in after or written.get(name) is not None:
            continue
        below = after.pop(name)
        if name in others:
            inside = _merged(_object(below), _object(value), others[name], {})
            after[name] = inside if isinstance(below, dict) else below
    for name, value in written.items():
        if isinstance(value, dict):
            old, before, theirs = (_object(each.get(name)) for each in (present, former, others))
            after[name] = _merged(old, before, theirs, value)
        elif value is None:
            after.pop(name, None)
        else:
            after[name] = value
    return after


def _former(text: str, name: str) -> Json:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        what = f"the annotation {LAST_APPLIED} of {name} is no JSON object"
        raise ApiError(f"{what}; remove it, or apply with --server-side", 0)
    return found


def _object(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _owned(managers: Sequence[Json], operation: str) -> Json:
    """Return the fields that operations of a kind wrote, for every program that asked for them."""
    found: Json = {}
    for each in managers:
        if each.get("operation") == operation and not each.get("subresource"):
            found = _merged(found, {}, {}, _fields(each.get("fieldsV1") or {}))
    return found


def _fields(tree: Json) -> Json:
    """Return a set of fields as nested objects; what is below a list counts as the list."""
    return {
        name.removeprefix("f:"): _fields(below)
        for name, below in tree.items()
        if name.startswith("f:")
    }
