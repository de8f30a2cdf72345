"""The operator talks to processes in the way their pods were made, whatever the spec wants for the next pods."""

import base64
from datetime import UTC, datetime

import pytest

from orderlymq_operator.kube.certificates.authority import make_authority
from orderlymq_operator.kube.resources import SECRETS
from tests.operator.kube.samples import NAMESPACE
from tests.operator.kube.smallcluster import KEY, small_cluster


@pytest.mark.parametrize("mode", ["Automatic", "Paused"])
async def test_pods_that_speak_plainly_are_heard_until_they_are_replaced(
    monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Law: pods without TLS are still heard after an edit that switches TLS on, until their roll has replaced them."""
    made = make_authority("demo", datetime.now(UTC))
    pair = {"tls.crt": made.certificate, "tls.key": made.key, "ca.crt": made.certificate}
    async with small_cluster(monkeypatch.setattr, update={"mode": mode}) as small:
        for _ in range(3):
            await small.reconciler.reconcile(KEY)
        data = {key: base64.b64encode(text.encode()).decode() for key, text in pair.items()}
        meta = {"name": "pair", "namespace": NAMESPACE}
        small.server.put(
            SECRETS, {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": data}
        )
        small.server.writes()

        small.change(tls={"mode": "Enforcing", "secretName": "pair"})
        for _ in range(3):
            await small.reconciler.reconcile(KEY)

        evicted = [path for _, path, *_ in small.server.writes() if path.endswith("/eviction")]
        if mode == "Automatic":
            assert any("demo-0-0" in path for path in evicted), "who is not heard is not replaced"
        else:
            assert not evicted
            assert small.condition("Available")["status"] == "True"
