"""A cluster that serves only signed requests over TLS, and an account that may only send to one topic."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml
from tests.runtime.certificates import make_authority, make_certificate

from e2e.manifests import secret
from e2e.space import Json, Space

SECRET, ANOTHER = "not-to-be-guessed", "nor-this-one"
# A client gives up after its send time-out of 3 s, and the command itself takes as long to start.
_ASKED_S = 30.0


@dataclass(frozen=True)
class Client:
    """A pod from which an account sends."""

    space: Space
    pod: str

    def send(self, secret: str, *, topic: str = "orders", tls: bool = True) -> str:
        """Send one message as shop-app; return the command's output."""
        facts = {"ORDERLYMQ_ACCESS_KEY": "shop-app", "ORDERLYMQ_SECRET_KEY": secret}
        if tls:
            facts |= {"ORDERLYMQ_TLS": "true", "ORDERLYMQ_TLS_CA": "/tls/ca.crt"}
            facts |= {"ORDERLYMQ_TLS_VERIFY_HOST": "false"}
        named = " ".join(f"{name}={value}" for name, value in facts.items())
        server = "--name-server guarded-nameserver:9876"
        command = f"{named} orderlymq send {topic} hello --key k {server} 2>&1 || true"
        words = ("exec", self.pod, "--", "sh", "-c", command)
        return self.space.kubectl(*words, timeout_s=_ASKED_S)


def test_signed_requests_over_tls_are_served_and_others_refused(
    space: Space, tmp_path: Path
) -> None:
    """With the unchanged example: waiting for a Secret is reported, ends when it exists, and rights count immediately."""
    space.kubectl("delete", "secret", "guarded-tls", "shop-app", "--ignore-not-found")
    space.example("kubernetes/tls-and-users.yaml")
    found = space.says("cluster/guarded", "SecretMissing", timeout_s=90)
    assert "guarded-tls" in found["message"], found

    authority = make_authority(tmp_path)
    made = make_certificate(authority, "guarded")
    assert made.certificate is not None
    assert made.key is not None
    pair = {"tls.crt": made.certificate, "tls.key": made.key, "ca.crt": authority}
    space.apply(secret("guarded-tls", {key: path.read_text() for key, path in pair.items()}))
    space.says("user/shop-app", "SecretMissing", timeout_s=180)
    space.apply(secret("shop-app", {"secretKey": SECRET}))
    space.ready("cluster/guarded", "topic/guarded-orders", "user/shop-app", timeout_s=240)

    with _client(space) as client:
        assert client.send(SECRET).startswith("OK ")
        assert "No default permission" in client.send(SECRET, topic="accounts")
        assert "signature" in client.send(ANOTHER)
        assert not client.send(SECRET, tls=False).startswith("OK ")

        space.apply(secret("shop-app", {"secretKey": ANOTHER}))
        space.until(lambda: client.send(ANOTHER).startswith("OK "), "the new secret counts", 90)
        assert client.send(SECRET).startswith("OK ")
        space.patch("user/shop-app", {"secretRotation": {"overlapSeconds": 0}})
        space.until(lambda: "signature" in client.send(SECRET), "the former secret ends", 90)


@contextmanager
def _client(space: Space) -> Iterator[Client]:
    source = {"secretName": "guarded-tls", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    container = {
        "name": "client",
        "image": space.image,
        "command": ["sleep", "600"],
        "volumeMounts": [{"name": "tls", "mountPath": "/tls"}],
    }
    spec = {
        "containers": [container],
        "volumes": [{"name": "tls", "secret": source}],
        "terminationGracePeriodSeconds": 0,
    }
    space.apply(_object("Pod", "client", spec=spec))
    space.kubectl("wait", "pod/client", "--for=condition=Ready", "--timeout=60s")
    yield Client(space, "client")
    space.kubectl("delete", "pod", "client", "--wait=false")


def _object(kind: str, name: str, **more: Json) -> str:
    return yaml.safe_dump({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **more})
