"""
Builds and parses the Secrets with the authorities of a Cluster and with the certificates of its broker groups.

Pure. Rules: such a Secret never changes, and Kubernetes enforces that (`immutable`). A Secret of that name that was not
made for exactly this Cluster is never used.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from orderlymq_operator.kube.certificates.authority import (
    CertificateError,
    Pair,
    certificates_in,
    life_of,
)
from orderlymq_operator.kube.certificates.record import Issued
from orderlymq_operator.kube.certificates.schedule import CLOCK_SKEW, Authority
from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.accounts import is_of
from orderlymq_operator.kube.objects.ownership import owned
from orderlymq_operator.kube.objects.pods import TLS_KEYS
from orderlymq_operator.kube.resources import SECRETS, Json
from orderlymq_operator.resources.kinds import Cluster

_CERTIFICATE, _KEY, _TRUSTED = TLS_KEYS
_PEM_MAX: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class KnownAuthority:
    """An authority without its key, so that it may be kept in memory.

    Attributes:
        issuer: the Secret that it was copied from; empty if the operator made it.
    """

    facts: Authority
    certificate: str
    trusted: str
    issuer: str


def authority_secret(cluster: Cluster, number: int, pair: Pair, issuer: str) -> Json:
    """Return the Secret with an authority; no pod mounts it."""
    texts = {
        _CERTIFICATE: pair.certificate,
        _KEY: pair.key,
        _TRUSTED: pair.trusted or pair.certificate,
    }
    made = _secret(cluster, names.authority_secret(cluster, number), None, texts)
    made["metadata"]["annotations"][names.ANNOTATION_ISSUER] = issuer
    return made


def certificates_secret(
    cluster: Cluster, group: str, issued: Issued, pairs: Mapping[str, Pair], trusted: Sequence[str]
) -> Json:
    """Return the Secret with the certificates of a broker group, by pod, and the authorities that its pods trust."""
    texts = {_TRUSTED: "".join(dict.fromkeys(trusted))}
    for pod, pair in pairs.items():
        texts |= {f"{pod}.crt": pair.certificate, f"{pod}.key": pair.key}
    name = names.certificates_secret(group, issued.made.number)
    made = _secret(cluster, name, group, texts)
    made["metadata"]["annotations"][names.ANNOTATION_CERTIFICATES] = issued.text()
    return made


def known_authority(cluster: Cluster, number: int, secret: Json | None) -> KnownAuthority | None:
    """Return the authority in a Secret; None if the Secret is missing, unreadable or not of this Cluster."""
    if secret is None or not is_of(cluster, secret):
        return None
    pair = pair_in(secret)
    try:
        begins, ends = life_of(pair.certificate)
    except CertificateError:
        return None
    issuer = (secret["metadata"].get("annotations") or {}).get(names.ANNOTATION_ISSUER, "")
    facts = Authority(number, begins if issuer else begins + CLOCK_SKEW, ends)
    return KnownAuthority(facts, pair.certificate, pair.trusted, issuer)


def issued_in(cluster: Cluster, secret: Json | None) -> Issued | None:
    """Return the record of a Secret with certificates; None if it is missing, invalid or not of this Cluster."""
    if secret is None or not is_of(cluster, secret):
        return None
    notes = secret["metadata"].get("annotations") or {}
    return Issued.parsed(notes.get(names.ANNOTATION_CERTIFICATES))


def pair_in(secret: Json) -> Pair:
    """Return the authority in a Secret, with its certificates encoded again; texts that are missing are empty."""
    certificate, trusted = (_certificates(secret, name) for name in (_CERTIFICATE, _TRUSTED))
    key = _text(secret, _KEY)
    return Pair(certificate, key, trusted or certificate)


def _certificates(secret: Json, key: str) -> str:
    text = _text(secret, key)
    try:
        return certificates_in(text)
    except CertificateError:
        return text


def _text(secret: Json, key: str) -> str:
    text = (secret.get("data") or {}).get(key) or ""
    try:
        return base64.b64decode(text).decode() if len(text) <= _PEM_MAX else ""
    except ValueError:
        return ""


def _secret(cluster: Cluster, name: str, group: str | None, texts: Mapping[str, str]) -> Json:
    labels = names.labels(cluster, names.BROKER, group)
    content = {"type": "Opaque", "immutable": True, "stringData": dict(texts)}
    return owned("Cluster", cluster.metadata, SECRETS, name, labels, **content)
