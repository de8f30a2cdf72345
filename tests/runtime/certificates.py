"""Certificates for tests, made by the openssl command: an authority, a server, a client."""

import shutil
import subprocess
from pathlib import Path

import pytest

from orderlymq_runtime.security.tls import TlsFiles


def make_authority(folder: Path, name: str = "ca") -> Path:
    """Make an authority and return its certificate; its key is beside it."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl not installed here; runs in CI")
    folder.mkdir(parents=True, exist_ok=True)
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    _openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-keyout", str(key), "-out", str(certificate), "-days", "1", "-subj", f"/CN={name}"),
    )
    return certificate


def make_certificate(
    ca: Path, name: str, *, days: int = 1, uri: str = "", host: str = ""
) -> TlsFiles:
    """Make a certificate for 127.0.0.1 and *host*, signed by *ca*; with a negative number of *days* it has expired."""
    folder = ca.parent
    request, certificate, key = (folder / f"{name}.{end}" for end in ("csr", "pem", "key"))
    extensions = folder / "extensions.cnf"
    names = ["IP:127.0.0.1", "DNS:localhost", *([f"URI:{uri}"] if uri else [])]
    names += [f"DNS:{host}"] if host else []
    extensions.write_text(f"subjectAltName={','.join(names)}\n")
    _openssl(
        *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-keyout", str(key), "-out", str(request), "-subj", f"/CN={name}"),
    )
    _openssl(
        *(
            "x509",
            "-req",
            "-in",
            str(request),
            "-CA",
            str(ca),
            "-CAkey",
            str(ca.with_suffix(".key")),
        ),
        *(
            "-CAcreateserial",
            "-days",
            str(days),
            "-out",
            str(certificate),
            "-extfile",
            str(extensions),
        ),
    )
    return TlsFiles(certificate, key, ca)


def _openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True, timeout=30)
