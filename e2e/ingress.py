"""
A working Ingress: nginx on this machine, configured only from the Ingress object, as a controller would do it.

A cluster without a controller's image has Ingress objects that no program reads. This one speaks TLS with the
certificate of the Ingress, routes to the Service by the name of its port, and uses the protocol in ingress-nginx'
annotation. Otherwise it keeps nginx' own defaults: it buffers responses unless a setting forbids it.
"""

import base64
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from string import Template
from typing import Final

from tests.ports import free_row

from e2e.machine import MachineError
from e2e.space import Space

PROTOCOL: Final = "nginx.ingress.kubernetes.io/backend-protocol"
_CONFIGURATION: Final = Template(
    """
master_process off;
daemon off;
pid $folder/nginx.pid;
error_log stderr;
events {}
http {
  access_log off;
  client_body_temp_path $folder/body;
  proxy_temp_path $folder/proxy;
  fastcgi_temp_path $folder/fastcgi;
  uwsgi_temp_path $folder/uwsgi;
  scgi_temp_path $folder/scgi;
  server {
    listen 127.0.0.1:$port ssl;
    ssl_certificate $folder/tls.crt;
    ssl_certificate_key $folder/tls.key;
    location $path {
      proxy_pass $protocol://127.0.0.1:$backend;
      proxy_http_version 1.1;
      proxy_set_header Host $$http_host;
      proxy_set_header X-Forwarded-For $$remote_addr;
      proxy_set_header X-Forwarded-Proto $$scheme;
    }
  }
}
"""
)


@contextmanager
def served(space: Space, name: str, folder: Path) -> Iterator[int]:
    """Serve an Ingress of one host and one path with TLS; yield the port on this machine.

    Raises:
        MachineError: there is no nginx here, or it does not start.
    """
    if shutil.which("nginx") is None:
        raise MachineError("an Ingress is served by nginx: install nginx-light")
    ingress = space.must(f"ingress/{name}")
    (rule,), (tls,) = ingress["spec"]["rules"], ingress["spec"]["tls"]
    assert tls["hosts"] == [rule["host"]]
    (path,) = rule["http"]["paths"]
    secret = space.must(f"secret/{tls['secretName']}")
    for key in ("tls.crt", "tls.key"):
        (folder / key).write_bytes(base64.b64decode(secret["data"][key]))
    service = path["backend"]["service"]
    port = free_row(1)
    with space.forwarded(service["name"], service["port"]["name"]) as backend:
        text = _CONFIGURATION.substitute(
            folder=folder,
            port=port,
            path=path["path"],
            protocol=ingress["metadata"].get("annotations", {}).get(PROTOCOL, "HTTP").lower(),
            backend=backend,
        )
        file = folder / "nginx.conf"
        file.write_text(text)
        command = ("nginx", "-p", str(folder), "-c", str(file), "-e", "stderr")
        with subprocess.Popen(command) as process:
            try:
                space.until(lambda: _serves(process, folder), "nginx serves", 20)
                yield port
            finally:
                process.terminate()


def _serves(process: "subprocess.Popen[bytes]", folder: Path) -> bool:
    """Return whether nginx listens: it writes its file after that."""
    if process.poll() is not None:
        raise AssertionError(f"nginx has ended with {process.returncode}")
    return (folder / "nginx.pid").exists()
