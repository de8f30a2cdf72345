"""The profile Strict refuses settings that leave connections unencrypted or unauthenticated; the error names the field."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from orderlymq_operator.kube.objects.cluster import kube_revision
from orderlymq_operator.resources.kinds import Cluster, User
from orderlymq_operator.resources.manifests.reader import read
from tests.operator.kube.samples import IMAGE, cluster

STRICT: dict[str, Any] = {
    "security": {"profile": "Strict", "internalTls": "Enabled"},
    "tls": {"mode": "Enforcing", "secretName": "pair"},
    "config": {"aclEnable": True, "signedAdministration": True},
}
PRODUCTION = Path(__file__).parents[2] / "examples" / "kubernetes" / "production.yaml"


def made(**spec: Any) -> Cluster:
    return Cluster.model_validate({"metadata": {"name": "demo"}, "spec": {**STRICT, **spec}})


def test_what_strict_needs_is_enough() -> None:
    """Certificate files may take the place of the Secret, as on a laptop."""
    files = {"mode": "Enforcing", "certificateFile": "a.pem", "keyFile": "a.key"}

    assert made().spec.security.profile == "Strict"
    assert made(tls=files).spec.tls.mode == "Enforcing"
    assert cluster().spec.security.profile == "Compatible"


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"tls": {"mode": "Disabled"}}, "tls.mode Enforcing"),
        ({"tls": {"mode": "Permissive", "secretName": "pair"}}, "tls.mode Enforcing"),
        ({"config": {"signedAdministration": True}}, "config.aclEnable true"),
        ({"config": {"aclEnable": True}}, "config.signedAdministration true"),
        ({"security": {"profile": "Strict"}}, "security.internalTls Enabled"),
        ({"security": {"profile": "Strict", "internalTls": "Disabled"}}, "internalTls Enabled"),
        ({"allowedNamespaces": ["*"]}, "allowedNamespaces"),
    ],
)
def test_a_contradiction_is_refused(spec: dict[str, Any], named: str) -> None:
    """The refusal says what to write instead."""
    with pytest.raises(ValidationError, match=named):
        made(**spec)
    spec = {**spec, "security": {**spec.get("security", {}), "profile": "Compatible"}}
    assert Cluster.model_validate({"metadata": {"name": "demo"}, "spec": spec})


def test_the_profile_alone_restarts_nothing() -> None:
    """The profile only demands values of other fields, so it restarts nothing."""
    compatible = {**STRICT, "security": {"internalTls": "Enabled"}}

    assert kube_revision(cluster(**STRICT), IMAGE) == kube_revision(cluster(**compatible), IMAGE)


def test_the_example_for_production_is_strict_and_has_what_it_needs() -> None:
    """The example takes its key pair from a Secret, and gives its application an account."""
    found = [each.resource for each in read([PRODUCTION])]
    (shop,) = [each for each in found if isinstance(each, Cluster)]

    assert shop.spec.security.profile == "Strict"
    assert shop.spec.tls.secret_name is not None
    assert any(isinstance(each, User) for each in found)
