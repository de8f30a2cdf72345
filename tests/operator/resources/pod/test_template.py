"""Settings that a pod template may have, and those that belong to the operator."""

from contextlib import nullcontext
from typing import Any

import pytest
from pydantic import ValidationError

from orderlymq_operator.resources.manifests.problems import ManifestError
from orderlymq_operator.resources.manifests.reader import parse
from orderlymq_operator.resources.pod.template import PodTemplate

_VOLUME = {"name": "extra", "emptyDir": {}}
_SIDECAR = {"name": "logs", "image": "logs:1"}

_OWN: list[tuple[dict[str, Any], str, str]] = [
    ({"labels": {"orderlymq.io/role": "leader"}}, "labels", "label 'orderlymq.io/role'"),
    ({"labels": {"app.kubernetes.io/name": "x"}}, "labels", "label 'app.kubernetes.io/name'"),
    (
        {"annotations": {"orderlymq.io/revision": "x"}},
        "annotations",
        "annotation 'orderlymq.io/revision'",
    ),
    ({"env": [{"name": "POD_NAME", "value": "x"}]}, "env", "variable 'POD_NAME'"),
    ({"env": [{"name": "PYTHONOPTIMIZE", "value": "1"}]}, "env", "variable 'PYTHONOPTIMIZE'"),
    *(
        ({"env": [{"name": name, "value": "x"}]}, "env", f"variable '{name}'")
        for name in (
            *("SSLKEYLOGFILE", "GCONV_PATH", "LD_PRELOAD", "LD_AUDIT"),
            *("GLIBC_TUNABLES", "OPENSSL_CONF"),
        )
    ),
    ({"volumes": [{"name": "data", "emptyDir": {}}]}, "volumes", "volume 'data'"),
    ({"volumes": [{"name": "listener-x", "emptyDir": {}}]}, "volumes", "volume 'listener-x'"),
    (
        {"volumeMounts": [{"name": "identity", "mountPath": "/x"}]},
        "volumeMounts",
        "volume 'identity'",
    ),
    *(
        (
            {"volumes": [_VOLUME], "volumeMounts": [{"name": "extra", "mountPath": path}]},
            "volumeMounts",
            f"path '{path}'",
        )
        for path in (
            *("/var/lib/orderlymq", "/var/lib/orderlymq/replica", "/var/lib", "/", "/tmp/x"),
            *("/etc/orderlymq-tls", "/etc", "/opt/orderlymq/own"),
            *("/var/run/secrets/kubernetes.io/serviceaccount", "/run"),
        )
    ),
    ({"sidecars": [{**_SIDECAR, "name": "broker"}]}, "sidecars", "container 'broker'"),
    (
        {"sidecars": [{**_SIDECAR, "ports": [{"name": "x", "containerPort": 10911}]}]},
        "sidecars",
        "port 'x 10911'",
    ),
    (
        {"sidecars": [{**_SIDECAR, "ports": [{"name": "http", "containerPort": 80}]}]},
        "sidecars",
        "port 'http 80'",
    ),
    (
        {"sidecars": [{**_SIDECAR, "volumeMounts": [{"name": "data", "mountPath": "/d"}]}]},
        "sidecars.0.volumeMounts",
        "volume 'data'",
    ),
]


def _error(template: dict[str, Any]) -> tuple[str, str]:
    """Return the field and the reason by which a template is refused."""
    with pytest.raises(ValidationError) as caught:
        PodTemplate.model_validate(template)
    (found,) = caught.value.errors()
    return ".".join(map(str, found["loc"])), str(found["ctx"]["error"])


@pytest.mark.parametrize(("template", "field", "named"), _OWN)
def test_what_the_operator_keeps_is_refused_by_its_name_and_with_advice(
    template: dict[str, Any], field: str, named: str
) -> None:
    """Law: what the operator sets (labels, variables, containers, ports, volumes,
    paths) is refused by name and with advice.
    """
    where, text = _error(template)

    assert where == field
    said, advice = text.split("; ")
    assert said == f"{named} is set by the operator"
    assert advice


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (
            {"volumeMounts": [{"name": "extra", "mountPath": "/x"}]},
            "/x mounts the volume 'extra', which is not in volumes; add it there",
        ),
        ({"volumes": [_VOLUME, _VOLUME]}, "volume 'extra' is given twice; remove one"),
        ({"sidecars": [_SIDECAR, _SIDECAR]}, "sidecar 'logs' is given twice; remove one"),
        ({"env": [{"name": "A"}, {"name": "A"}]}, "variable 'A' is given twice; remove one"),
        (
            {
                "sidecars": [
                    {**_SIDECAR, "ports": [{"name": "a", "containerPort": 80}]},
                    {**_SIDECAR, "name": "b", "ports": [{"name": "b", "containerPort": 80}]},
                ]
            },
            "port '80/TCP' is given twice; remove one",
        ),
        (
            {
                "sidecars": [
                    {
                        **_SIDECAR,
                        "ports": [
                            {"name": "a", "containerPort": 80},
                            {"name": "a", "containerPort": 81},
                        ],
                    },
                ]
            },
            "port 'a' is given twice; remove one",
        ),
        (
            {"topologySpreadConstraints": [{"topologyKey": "rack"}, {"topologyKey": "rack"}]},
            "topologyKey 'rack' is given twice; remove one",
        ),
        (
            {"topologySpreadConstraints": [{"topologyKey": "rack", "minDomains": 3}]},
            "minDomains needs whenUnsatisfiable DoNotSchedule",
        ),
        (
            {
                "affinity": {
                    "podAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "rack"}]
                    }
                }
            },
            "podAffinity needs labelSelector: without it, the replicas of a group would be put together",
        ),
        ({"volumes": [{"name": "x"}]}, "set exactly one of"),
        (
            {"volumes": [{"name": "x", "emptyDir": {}, "secret": {"secretName": "s"}}]},
            "set exactly one of",
        ),
        (
            {
                "env": [
                    {
                        "name": "A",
                        "value": "x",
                        "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}},
                    }
                ]
            },
            "set value or valueFrom, not both",
        ),
        ({"env": [{"name": "A", "valueFrom": {}}]}, "set exactly one of"),
        (
            {"volumes": [_VOLUME], "volumeMounts": [{"name": "extra", "mountPath": "/a/../etc"}]},
            "write the path as /etc",
        ),
        (
            {
                "volumes": [_VOLUME],
                "volumeMounts": [{"name": "extra", "mountPath": "/x", "subPath": "a/../../b"}],
            },
            "subPath must stay within the volume; remove the ..",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_what_to_do(template: dict[str, Any], text: str) -> None:
    """Law: a template that cannot work is refused with what to do, before the API server would refuse a StatefulSet."""
    assert _error(template)[1].startswith(text)


@pytest.mark.parametrize(
    "template",
    [
        {"securityContext": {"runAsUser": 0}},
        {"labels": {"not a key": "x"}},
        {"labels": {f"key{number}": "x" for number in range(33)}},
        {"sidecars": [{**_SIDECAR, "readinessProbe": {}}]},
        {"sidecars": [{**_SIDECAR, "securityContext": {"privileged": True}}]},
        {"volumes": [{"name": "x", "hostPath": {"path": "/"}}]},
        {"hostNetwork": True},
    ],
)
def test_a_template_is_bounded_and_has_no_other_field(template: dict[str, Any]) -> None:
    """Law: a template is bounded: no root, no privileges, no host folders and no host network."""
    with pytest.raises(ValidationError):
        PodTemplate.model_validate(template)


def test_a_manifest_with_a_refused_template_names_its_line_and_field() -> None:
    """Law: a refused template is reported with line and field, as any other mistake."""
    text = """apiVersion: orderlymq.io/v1alpha1
kind: Cluster
metadata: {name: shop}
spec:
  podTemplate:
    labels:
      orderlymq.io/role: leader
"""
    with pytest.raises(ManifestError) as caught:
        parse(text, "shop.yaml")

    assert str(caught.value) == (
        "shop.yaml:6: spec.podTemplate.labels: "
        "label 'orderlymq.io/role' is set by the operator; choose another key"
    )


@pytest.mark.parametrize(
    ("template", "taken"),
    [
        (
            {
                "env": [
                    {"name": "X", "valueFrom": {"secretKeyRef": {"name": "s", "key": ".a-b_c.d"}}}
                ]
            },
            True,
        ),
        (
            {"env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "s", "key": "a/b"}}}]},
            False,
        ),
        (
            {"env": [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "s", "key": ".."}}}]},
            False,
        ),
        ({"volumes": [{"name": "v", "csi": {"driver": "secrets-store.csi.k8s.io"}}]}, True),
        ({"volumes": [{"name": "v", "csi": {"driver": "secrets_store"}}]}, False),
    ],
    ids=str,
)
def test_a_name_with_which_no_pod_can_be_made_is_refused(
    template: dict[str, Any], taken: bool
) -> None:
    """Law: a name with which Kubernetes makes no pod is refused in the manifest, not later in the StatefulSet."""
    with nullcontext() if taken else pytest.raises(ValidationError):
        PodTemplate.model_validate(template)


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("http2", True),
        ("1-2a-3", True),
        ("a-1", True),
        ("80", False),
        ("1-2", False),
        ("a--b", False),
        ("-a", False),
        ("a-", False),
    ],
)
def test_a_port_has_a_name_with_which_a_pod_can_be_made(name: str, taken: bool) -> None:
    """Law: a port's name with which Kubernetes makes no pod is refused in the manifest, not later in the StatefulSet."""
    port = {"name": name, "containerPort": 8080}
    with nullcontext() if taken else pytest.raises(ValidationError):
        PodTemplate.model_validate({"sidecars": [{**_SIDECAR, "ports": [port]}]})
