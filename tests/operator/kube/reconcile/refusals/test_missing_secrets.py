"""A Secret that new pods need is missing: no running pod is replaced by one that could not start."""

from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from orderlymq_operator.kube.resources import SECRETS, Json
from tests.operator.kube.samples import NAMESPACE
from tests.operator.kube.smallcluster import KEY, SmallCluster, small_cluster
from tests.runtime.certificates import make_authority, make_certificate

_TLS = {"mode": "Permissive", "secretName": "pair"}


def secret(name: str, **texts: str) -> Json:
    """Return a Secret; an underscore in a key's name becomes a point."""
    meta = {"name": name, "namespace": NAMESPACE}
    data = {key.replace("_", "."): text for key, text in texts.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": data}


def pair(folder: Path, name: str = "pair") -> Json:
    """Return a Secret with a key pair of its own authority."""
    files = make_certificate(make_authority(folder / name), "server")
    assert files.certificate is not None
    assert files.key is not None
    assert files.ca is not None
    texts = {"tls_crt": files.certificate, "tls_key": files.key, "ca_crt": files.ca}
    return secret(name, **{key: path.read_text() for key, path in texts.items()})


async def evicted(small: SmallCluster) -> tuple[set[str], float | None]:
    """Reconcile several times; return the evicted pods, and when the next reconcile is due."""
    small.server.writes()
    delay_s = None
    for _ in range(4):
        delay_s = await small.reconciler.reconcile(KEY)
    gone = {path.split("/")[-2] for _, path in small.server.writes() if path.endswith("/eviction")}
    return gone, delay_s


@pytest.mark.parametrize(
    ("edit", "wrong", "right"),
    [
        ({"tls": _TLS}, None, "pair"),
        ({"tls": _TLS}, secret("pair", tls_crt="x", tls_key="y", ca_crt="z"), "pair"),
        (
            {"listeners": [{"name": "out", "type": "NodePort", "tls": {"secretName": "pair"}}]},
            None,
            "pair",
        ),
        (
            {"listeners": [{"name": "out", "type": "NodePort", "tls": {"secretName": "pair"}}]},
            secret("pair", tls_crt="x", tls_key="y"),
            "pair",
        ),
        (
            {
                "tls": {**_TLS, "secretName": "other"},
                "security": {"internalTls": "Disabled", "pagesToken": {"secretName": "pages"}},
            },
            None,
            "pages",
        ),
    ],
    ids=["no pair", "no certificate", "no pair of a listener", "no certificate there", "no token"],
)
async def test_no_pod_is_replaced_before_its_successor_can_start(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    edit: dict[str, Any],
    wrong: Json | None,
    right: str,
) -> None:
    """Law: no broker or name server is replaced while a Secret is missing; when it is made, the edit goes on."""
    for listener in edit.get("listeners", []):
        listener["port"] = 9094
    async with small_cluster(monkeypatch.setattr) as small:
        small.server.put(SECRETS, pair(tmp_path, "other"))
        await evicted(small)
        if wrong is not None:
            small.server.put(SECRETS, wrong)
        small.change(**edit)

        early, delay_s = await evicted(small)
        said = small.condition("Ready")
        made = secret("pages", token="x" * 32) if right == "pages" else pair(tmp_path)
        small.server.put(SECRETS, made)
        late, _ = await evicted(small)

    assert early == set()
    assert (said["reason"], right in said["message"]) == ("SecretMissing", True)
    assert delay_s is not None
    assert "demo-nameserver-0" in late


@pytest.mark.parametrize(
    ("name", "key"), [("demo-identity", "secret"), ("demo-operator", "secretKey")]
)
async def test_a_secret_of_its_own_that_somebody_changes_replaces_no_pod(
    monkeypatch: pytest.MonkeyPatch, name: str, key: str
) -> None:
    """Law: a Secret of the operator's that somebody changes replaces no pod;
    pods with another text could not talk to the others.
    """
    async with small_cluster(monkeypatch.setattr) as small:
        while await small.reconciler.reconcile(KEY) is not None:
            pass
        before = small.server.find(SECRETS, NAMESPACE, name)
        assert before is not None
        small.server.put(SECRETS, {**before, "data": {key: b64encode(b"another").decode()}})
        small.change(config={"logLevel": "DEBUG"})

        early, delay_s = await evicted(small)
        said = small.condition("Ready")
        small.server.put(SECRETS, before)
        late, _ = await evicted(small)

    assert early == set()
    assert (said["reason"], repr(name) in said["message"]) == ("SecretMissing", True)
    assert delay_s is not None
    assert "demo-nameserver-0" in late


async def test_certificates_in_files_are_no_certificates_of_pods(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: with Enforcing and certificates only in files no pod is replaced, because new pods would be plain;
    the condition says so.
    """
    async with small_cluster(monkeypatch.setattr) as small:
        await evicted(small)
        small.change(tls={"mode": "Permissive", "certificateFile": "a.crt", "keyFile": "a.key"})
        await evicted(small)
        small.change(tls={"mode": "Enforcing", "certificateFile": "a.crt", "keyFile": "a.key"})

        gone, _ = await evicted(small)
        said = small.condition("Ready")

    assert gone == set()
    assert said["reason"] == "SecretMissing"
    assert "spec.tls.mode Enforcing needs spec.tls.secretName" in said["message"]
