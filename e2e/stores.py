"""An object store in a pod of a scenario: an S3 server with one bucket, whose connections can be cut."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import yaml

from e2e.machine import Machine, say
from e2e.manifests import secret
from e2e.space import Json, Space

IMAGE: Final = "orderlymq-store:dev"
BUCKET: Final = "lake"
PORT: Final = 9000
NAME: Final = "store"
_VARIABLES: Final = {
    "AWS_ACCESS_KEY_ID": "testing1",
    "AWS_SECRET_ACCESS_KEY": "testing1",
    "AWS_REGION": "us-east-1",
    "AWS_ENDPOINT_URL": f"http://{NAME}:{PORT}",
}
# For pipelines, which take their variables from the Secret.
ENV: Final = [{"name": each, "secret": {"name": NAME, "key": each}} for each in _VARIABLES]
# For Arrow, which uses neither our layer nor its library.
URI: Final = f"s3://{BUCKET}/{{}}?scheme=http&endpoint_override={NAME}:{PORT}"
_MAKE: Final = f"""
import urllib.request
request = urllib.request.Request("http://127.0.0.1:{PORT}/{BUCKET}", method="PUT")
urllib.request.urlopen(request, timeout=30)
"""


def build(machine: Machine) -> None:
    """Bring the image of the server to the nodes."""
    say(f"building {IMAGE}")
    machine.build(IMAGE, file="e2e/store.Dockerfile")


@dataclass(frozen=True)
class Store:
    """The server in a namespace, with its Secret; its data is gone when its pod ends."""

    space: Space

    def start(self) -> None:
        """Start the server and make the bucket."""
        labels = {"app": NAME}
        container = {
            "name": NAME,
            "image": IMAGE,
            "ports": [{"containerPort": PORT}],
            "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
        }
        deployment = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": NAME},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
            },
        }
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": NAME},
            "spec": {"selector": labels, "ports": [{"port": PORT}]},
        }
        made = (yaml.safe_dump(each) for each in (deployment, service))
        self.space.apply(secret(NAME, _VARIABLES), *made)
        self.space.kubectl("rollout", "status", f"deploy/{NAME}", "--timeout=180s", timeout_s=200)
        self.space.kubectl("exec", f"deploy/{NAME}", "--", "python3", "-c", _MAKE)

    @contextmanager
    def unreachable(self) -> Iterator[None]:
        """Reset its connections, and each new one, during the block."""
        pod: Json = self.space.pods(f"app={NAME}")[0]
        rule = ("FORWARD", "-p", "tcp", "-d", pod["status"]["podIP"])
        refuse = (*rule, "-j", "REJECT", "--reject-with", "tcp-reset")
        tables = ("docker", "exec", pod["spec"]["nodeName"], "iptables", "-w")
        self.space.machine.run(*tables, "-I", *refuse)
        say("the store is unreachable")
        try:
            yield
        finally:
            self.space.machine.run(*tables, "-D", *refuse)
