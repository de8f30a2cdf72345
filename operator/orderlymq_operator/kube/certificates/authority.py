"""
Authorities and certificates as PEM, made by the `cryptography` library.

Rule: an authority signs no further authority; a certificate is good for servers and clients, and says by a URI who its
holder is. Keys are of P-256, which every TLS library has.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from orderlymq_operator.kube.certificates.holders import Holder
from orderlymq_operator.kube.certificates.schedule import (
    AUTHORITY_LIFE,
    CERTIFICATE_LIFE,
    CLOCK_SKEW,
)

# X.509 allows 64 characters in a common name; who it is stands in the URI.
_COMMON_NAME_MAX: Final = 64
_PURPOSES: Final = x509.ExtendedKeyUsage(
    [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
)


class CertificateError(ValueError):
    """A text is no certificate or no key that this module has made."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key, as PEM."""

    certificate: str
    key: str


def make_authority(name: str, now: datetime) -> Pair:
    """Return an authority that signs for itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(name)
    made = (
        _begun(subject, subject, key.public_key(), now)
        .not_valid_after(now + AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _pair(made, key)


def issue(authority: Pair, holder: Holder, now: datetime) -> Pair:
    """Return a certificate of *holder*, which ends no later than its authority.

    Raises:
        CertificateError: the authority cannot be read.
    """
    try:
        signer = x509.load_pem_x509_certificate(authority.certificate.encode())
        signing = serialization.load_pem_private_key(authority.key.encode(), None)
    except ValueError as error:
        raise CertificateError(f"the authority cannot be read: {error}") from error
    if not isinstance(signing, ec.EllipticCurvePrivateKey):
        raise CertificateError("the authority's key is none of an elliptic curve")
    key = ec.generate_private_key(ec.SECP256R1())
    alternatives: list[x509.GeneralName] = [x509.UniformResourceIdentifier(holder.uri)]
    alternatives += [x509.DNSName(host) for host in holder.hosts]
    made = (
        _begun(_name(holder.name), signer.subject, key.public_key(), now)
        .not_valid_after(min(now + CERTIFICATE_LIFE, signer.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(_PURPOSES, critical=False)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False
        )
        .sign(signing, hashes.SHA256())
    )
    return _pair(made, key)


def life_of(certificate: str) -> tuple[datetime, datetime]:
    """Return from when to when a certificate counts.

    Raises:
        CertificateError: the text is no certificate.
    """
    try:
        found = x509.load_pem_x509_certificate(certificate.encode())
    except ValueError as error:
        raise CertificateError(f"no certificate: {error}") from error
    return found.not_valid_before_utc, found.not_valid_after_utc


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:_COMMON_NAME_MAX])])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _pair(made: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    return Pair(
        made.public_bytes(serialization.Encoding.PEM).decode(),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ).decode(),
    )
