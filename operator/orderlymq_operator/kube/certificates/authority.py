"""
Authorities and certificates as PEM, made by the `cryptography` library.

Rules: an authority signs no other authority. A certificate is valid for servers and clients, and a URI in it names its
holder. Keys are on the curve P-256, which every TLS library supports.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, TypeAlias

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from orderlymq_operator.kube.certificates.holders import Holder
from orderlymq_operator.kube.certificates.schedule import (
    AUTHORITY_LIFE,
    CERTIFICATE_LIFE,
    CLOCK_SKEW,
)

# X.509 allows 64 characters in a common name. The URI holds the full identity.
_COMMON_NAME_MAX: Final = 64
_Key: TypeAlias = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
_PURPOSES: Final = x509.ExtendedKeyUsage(
    [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
)


class CertificateError(ValueError):
    """A text is not a certificate or key that this module can use."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key, as PEM.

    Attributes:
        trusted: the certificate that peers of this authority trust: its own, or that of its issuer if it has one.
    """

    certificate: str
    key: str = field(repr=False)
    trusted: str = ""


def make_authority(name: str, now: datetime) -> Pair:
    """Return a self-signed authority."""
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
    """Return a certificate for *holder*, which ends no later than its authority.

    Raises:
        CertificateError: the authority cannot be read.
    """
    signer, signing = _read(authority)
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
        .add_extension(_key_identifier(signer, signing), critical=False)
        .sign(signing, hashes.SHA256())
    )
    pair = _pair(made, key)
    if authority.trusted in ("", authority.certificate):
        return pair
    return Pair(pair.certificate + authority.certificate, pair.key)


def check_authority(authority: Pair, now: datetime) -> None:
    """Check that *authority* can sign certificates now.

    Raises:
        CertificateError: it cannot; the text says why.
    """
    signer, signing = _read(authority)
    if signer.public_key() != signing.public_key():
        raise CertificateError("tls.key does not belong to tls.crt")
    try:
        basic = signer.extensions.get_extension_for_class(x509.BasicConstraints).value
    except x509.ExtensionNotFound:
        basic = None
    except ValueError as error:
        raise CertificateError(f"tls.crt cannot be read: {error}") from error
    if basic is None or not basic.ca:
        raise CertificateError("tls.crt is not a certificate authority; issue it with isCA: true")
    if not signer.not_valid_before_utc <= now < signer.not_valid_after_utc:
        raise CertificateError("tls.crt is not valid now; renew it")
    for text in (authority.certificate, authority.trusted):
        certificates_in(text or authority.certificate)


def _read(authority: Pair) -> tuple[x509.Certificate, _Key]:
    try:
        signer = x509.load_pem_x509_certificate(authority.certificate.encode())
        signing = serialization.load_pem_private_key(authority.key.encode(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise CertificateError(f"the authority cannot be read: {error}") from error
    if not isinstance(signing, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        raise CertificateError(
            "the authority's key is neither an elliptic curve key nor an RSA key"
        )
    return signer, signing


def _key_identifier(signer: x509.Certificate, signing: _Key) -> x509.AuthorityKeyIdentifier:
    """Return the signer's own key identifier, or compute one if it has none; libraries compute it differently."""
    try:
        own = signer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    except x509.ExtensionNotFound:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key())
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own)


def certificates_in(text: str) -> str:
    """Return the certificates in a text, each encoded again, so that texts can be joined.

    Raises:
        CertificateError: the text holds no certificate, or one that cannot be read.
    """
    try:
        found = x509.load_pem_x509_certificates(text.encode())
    except ValueError as error:
        raise CertificateError(f"no certificates: {error}") from error
    return "".join(each.public_bytes(serialization.Encoding.PEM).decode() for each in found)


def life_of(certificate: str) -> tuple[datetime, datetime]:
    """Return the times at which a certificate becomes valid and expires.

    Raises:
        CertificateError: the text is not a certificate.
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
