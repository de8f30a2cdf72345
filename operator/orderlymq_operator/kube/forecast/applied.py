"""
The object that results when a manifest is applied over an existing object, merged as `kubectl apply` does.

Pure. Rules: existing fields stay, including defaults of the schema, unless the manifest sets them. A field that a
former apply wrote and that the manifest no longer has is removed, except nested fields that others wrote. A list counts
as one value.
"""

import json
from collections.abc import Sequence
from typing import Any

from orderlymq_operator.kube.errors import ApiError
from orderlymq_operator.kube.observe.inventory import LAST_APPLIED
from orderlymq_operator.kube.resources import Json
from orderlymq_operator.resources.kinds import Resource


def applied(manifest: Resource, found: Json) -> Json:
    """Return *found*, an object of the API server, with the spec and annotations that it has after the apply.

    Raises:
        ApiError: The former manifest, which kubectl stores in an annotation, cannot be read; kubectl fails then, too.
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
    """Merge *written* into *present*; remove *former* fields that are not in *written*, unless *others* have them."""
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
        what = f"the annotation {LAST_APPLIED} of {name} is not a JSON object"
        raise ApiError(f"{what}; remove it, or apply with --server-side", 0)
    return found


def _object(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _owned(managers: Sequence[Json], operation: str) -> Json:
    """Return the fields that all field managers wrote by one kind of operation."""
    found: Json = {}
    for each in managers:
        if each.get("operation") == operation and not each.get("subresource"):
            found = _merged(found, {}, {}, _fields(each.get("fieldsV1") or {}))
    return found


def _fields(tree: Json) -> Json:
    """Return a set of fields as nested objects; fields inside a list count as the list."""
    return {
        name.removeprefix("f:"): _fields(below)
        for name, below in tree.items()
        if name.startswith("f:")
    }
