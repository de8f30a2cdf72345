"""One group of a Cluster with certificates: our small API server has its Secrets, and its pods try them by handshakes."""

import base64
import ssl
from dataclasses import dataclass, field
from datetime import datetime
from itertools import permutations
from pathlib import Path
from typing import Any

from orderlymq_operator.kube.certificates.authority import Pair
from orderlymq_operator.kube.certificates.record import Issued
from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.cluster import Environment, RaftGroupFacts, group_set
from orderlymq_operator.kube.observe.cluster import Live
from orderlymq_operator.kube.observe.pods import pod_facts
from orderlymq_operator.kube.reconcile.certificates import (
    Certificates,
)
from orderlymq_operator.kube.resources import (
    SECRETS,
    Json,
)
from orderlymq_operator.resources.kinds import Cluster
from tests.operator.kube.objectserver import ObjectServer
from tests.operator.kube.samples import IMAGE, NAMESPACE, cluster, pod
from tests.security.test_tenants_certificates import handshake

GROUP = "demo-0"
_NO_CHECK_TIME = ssl.VerifyFlags(0x200000)  # OpenSSL's X509_V_FLAG_NO_CHECK_TIME
FORM = RaftGroupFacts(3, 3, "20Gi", "10.96.0.7")


@dataclass
class World:
    """One group of three replicas, its StatefulSet and its pods, as Kubernetes would have them."""

    server: ObjectServer
    certificates: Certificates
    folder: Path
    now: list[datetime]
    cluster: Cluster = field(default_factory=cluster)
    live: Live = field(default_factory=Live)
    rolled: int = 0

    async def settle(self, *, paused: bool = False) -> str:
        """Reconcile once; return what is wrong."""
        forms, problem = await self.certificates.settle(
            self.cluster, self.live, {GROUP: FORM}, paused=paused
        )
        around = Environment(IMAGE, "IfNotPresent", "1", groups=forms)
        self.live.put(group_set(self.cluster, GROUP, around))
        return problem

    async def rest(self) -> list[Issued | None]:
        """Reconcile, and replace one pod at a time, until nothing is left to do; return what certificates the pods have."""
        for _ in range(40):
            problem = await self.settle()
            assert not problem
            if not self.roll():
                return [self.said(name) for name in sorted(self.live.pods)]
            self.check()
        raise AssertionError("it never rests")

    def roll(self) -> bool:
        """Replace the first pod that does not agree with the template."""
        template = self.live.made["StatefulSet", GROUP]["spec"]["template"]
        for node in range(3):
            name = f"{GROUP}-{node}"
            made = pod(name)
            made["metadata"] |= {key: dict(template["metadata"][key]) for key in ("labels",)}
            made["metadata"]["annotations"] = dict(template["metadata"]["annotations"])
            facts = pod_facts(made)
            if self.live.pods.get(name) != facts:
                self.rolled += name in self.live.pods
                self.live.pods[name] = facts
                return True
        return False

    def said(self, name: str) -> Issued | None:
        """Return the certificates that a pod was made with."""
        return Issued.parsed(self.live.pods[name].annotations.get(names.ANNOTATION_CERTIFICATES))

    def check(self) -> None:
        """Check that every pod can call every other one: by TLS with its Secret, or without it if both permit that."""
        every = {name: self.said(name) for name in self.live.pods}
        for (name, mine), (other, yours) in permutations(every.items(), 2):
            if mine is None or yours is None:
                assert {mine and mine.mode, yours and yours.mode} <= {None, "permissive"}
                continue
            assert self.now[0] < mine.made.ends
            server = self.context(other, yours, server=True)
            handshake(self.context(name, mine, server=False), server)

    def context(self, name: str, issued: Issued, *, server: bool) -> ssl.SSLContext:
        """Return a pod's TLS context, made from the items that its volume would show."""
        secret = self.secret(names.certificates_secret(GROUP, issued.made.number))
        file = self.folder / f"{server}.pem"
        file.write_text(text(secret, f"{name}.crt") + text(secret, f"{name}.key"))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        # OpenSSL does not compare times, because the clock is the test's own; `check` compares them.
        context.verify_flags |= _NO_CHECK_TIME
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=text(secret, "ca.crt"))
        context.load_cert_chain(file)
        return context

    def secret(self, name: str) -> Json:
        found = self.server.find(SECRETS, NAMESPACE, name)
        assert found is not None, name
        return found

    def change(self, **security: Any) -> None:
        self.cluster = cluster(security=security)

    def put_issuer(self, pair: Pair, name: str = "issuer") -> None:
        texts = {"tls.crt": pair.certificate, "tls.key": pair.key}
        texts |= {"ca.crt": pair.trusted} if pair.trusted else {}
        meta = {"name": name, "namespace": NAMESPACE}
        made = {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": texts}
        self.server.put(SECRETS, made)


def text(secret: Json, key: str) -> str:
    return base64.b64decode(secret["data"][key]).decode()


def facts(every: list[Issued | None]) -> set[tuple[str, int, int, frozenset[int]] | None]:
    """Return mode, number, signer and trusted authorities of each set."""
    return {
        (each.mode, each.made.number, each.made.signer, each.made.trusts) if each else None
        for each in every
    }
