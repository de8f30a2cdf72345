"""Volumes grow with spec.storage.size if their class permits it; otherwise the condition says so."""

import pytest

from e2e.manifests import small, storage_class
from e2e.space import Space

pytestmark = pytest.mark.ci


def test_a_larger_size_reaches_every_volume_as_soon_as_its_class_lets_it_grow(
    space: Space,
) -> None:
    """NotExpandable names the class; the claims are patched when the class changes; no broker fails meanwhile.

    The provisioner of kind cannot grow volumes, so the condition then stays Resizing.
    """
    name = f"{space.name}-fixed"
    (standard,) = [
        found
        for found in space.items("storageclasses")
        if "storageclass.kubernetes.io/is-default-class"
        in (found["metadata"].get("annotations") or {})
    ]
    space.apply(storage_class(name, standard, expandable=False))
    try:
        space.apply(small("growing", storage={"className": name, "size": "64Mi"}))
        space.ready("cluster/growing")

        space.patch("cluster/growing", {"storage": {"size": "128Mi"}})
        found = space.says("cluster/growing", "NotExpandable", "StorageReady", timeout_s=90)
        assert name in found["message"], found
        assert _asked(space) == ["64Mi"]

        space.kubectl("patch", "storageclass", name, "-p", '{"allowVolumeExpansion": true}')
        space.until(lambda: _asked(space) == ["128Mi"], "the claim asks for more", 90)
        space.says("cluster/growing", "Resizing", "StorageReady", timeout_s=60)
        space.ready("cluster/growing", timeout_s=240)
    finally:
        space.kubectl("delete", "storageclass", name, "--ignore-not-found")


def _asked(space: Space) -> list[str]:
    claims = space.items("pvc", "app.kubernetes.io/component=broker")
    return [claim["spec"]["resources"]["requests"]["storage"] for claim in claims]
