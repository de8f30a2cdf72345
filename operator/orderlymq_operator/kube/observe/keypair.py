"""
The operator's end of TLS connections to the brokers and name servers of a Cluster.

Rule: the authority of the Cluster is trusted and no other. A certificate is shown where brokers ask for one: that of the
Cluster, which must be good for clients, too.
"""

import hashlib
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Content of a Secret, as PEM; *certificate* and *key* are empty where brokers ask for none."""

    authority: str
    certificate: str = ""
    key: str = ""

    @property
    def digest(self) -> str:
        """A text that differs between key pairs and reveals nothing of them."""
        text = "\0".join((self.authority, self.certificate, self.key))
        return hashlib.sha256(text.encode()).hexdigest()

    def trouble(self) -> str:
        """Return what is wrong with it; empty when it can be used."""
        if not self.authority:
            return "ca.crt is empty"
        try:
            _trusting(self.authority)
        except (ssl.SSLError, ValueError):
            return "ca.crt is no certificate"
        try:
            self.context()
        except (ssl.SSLError, OSError, ValueError):
            return "tls.crt and tls.key are no certificate and its key"
        return ""

    def context(self) -> ssl.SSLContext:
        """Return how connections are opened; without an authority nobody is trusted.

        Raises:
            ssl.SSLError: the certificate or the key cannot be used.
        """
        context = _trusting(self.authority)
        if self.certificate:
            # The ssl module reads key pairs from files alone; the folder is this process's own and goes immediately.
            with tempfile.TemporaryDirectory() as folder:
                pair = Path(folder, "pair.pem")
                pair.touch(mode=0o600)
                pair.write_text(f"{self.certificate}\n{self.key}\n")
                context.load_cert_chain(pair)
        return context


def _trusting(authority: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Pods are called by address; who they are says the authority of the cluster.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    if authority:
        context.load_verify_locations(cadata=authority)
    return context
