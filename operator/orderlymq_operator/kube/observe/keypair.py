"""
The operator's side of TLS connections to the brokers and name servers of a Cluster.

Rules: the operator trusts only the Cluster's authority. If brokers request a client certificate, the operator sends the
Cluster's certificate, which must be valid for clients, too.
"""

import hashlib
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class KeyPair:
    """The content of a Secret, as PEM; *certificate* and *key* are empty if brokers request no certificate."""

    authority: str
    certificate: str = ""
    key: str = ""

    @property
    def digest(self) -> str:
        """A text that differs between key pairs and reveals nothing of them."""
        text = "\0".join((self.authority, self.certificate, self.key))
        return hashlib.sha256(text.encode()).hexdigest()

    def trouble(self) -> str:
        """Return why the key pair cannot be used; empty if it can."""
        if not self.authority:
            return "ca.crt is empty"
        try:
            _trusting(self.authority)
        except (ssl.SSLError, ValueError):
            return "ca.crt is not a certificate"
        try:
            self.context()
        except (ssl.SSLError, OSError, ValueError):
            return "tls.crt and tls.key are not a certificate and its key"
        return ""

    def context(self) -> ssl.SSLContext:
        """Return the TLS context for connections; without an authority, it trusts no server.

        Raises:
            ssl.SSLError: the certificate or the key cannot be used.
        """
        context = _trusting(self.authority)
        if self.certificate:
            # The ssl module reads key pairs only from files. The folder is private and is removed immediately.
            with tempfile.TemporaryDirectory() as folder:
                pair = Path(folder, "pair.pem")
                pair.touch(mode=0o600)
                pair.write_text(f"{self.certificate}\n{self.key}\n")
                context.load_cert_chain(pair)
        return context


def _trusting(authority: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # The operator connects to pods by address; the Cluster's authority, not the host name, identifies them.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    if authority:
        context.load_verify_locations(cadata=authority)
    return context
