"""
The Kubernetes on which scenarios run: that of KUBECONFIG, or one that kind makes.

`$ORDERLYMQ_KIND` is a command that prints shell lines which set KUBECONFIG and PATH; without it, the command next to
the project is used, then `kind` itself. Nodes can be killed and cut off only if they are kind's containers.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
_KIND_NAME: Final = "orderlymq-e2e"
_KIND_SHAPE: Final = """
kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
nodes: [{role: control-plane}, {role: worker}, {role: worker}, {role: worker}]
"""
# Base images, the best first; if none is here, the Dockerfile's own is pulled.
_BASES: Final = ("python:3.12-slim", "orderlymq/python:3.11-slim")
_JAVA: Final = "orderlymq/java:17"
_SOURCES: Final = "/etc/apt/sources.list.d/debian.sources"
_UP_S: Final = 900
_BUILD_S: Final = 900


class MachineError(Exception):
    """There is no Kubernetes to run on; the text says what is missing."""


@dataclass(frozen=True)
class Machine:
    """A cluster, and the environment with which kubectl, helm, kind and docker reach it.

    Attributes:
        kind: name of the kind cluster, empty if kind did not make the cluster.
    """

    environment: dict[str, str]
    kind: str

    def run(
        self, *command: str, stdin: str | None = None, timeout_s: float = 120, check: bool = True
    ) -> str:
        """Run a program and return its output.

        Raises:
            MachineError: it failed, or did not end in time; the text holds what it wrote.
        """
        try:
            done = subprocess.run(
                command,
                env=self.environment,
                cwd=ROOT,
                input=stdin,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            if not check:
                return ""
            raise MachineError(f"{' '.join(command)[:300]}: no end in {timeout_s:g} s") from error
        if check and done.returncode != 0:
            raise MachineError(f"{' '.join(command)[:300]}: {done.stderr or done.stdout}")
        return done.stdout

    def build(self, image: str, *, file: str = "Dockerfile") -> None:
        """Build an image, by default the project's, and load it into the nodes; ORDERLYMQ_E2E_COMPILED=no skips compilation."""
        command = ("docker", "build", "-q", *self._options(), "-f", file, "-t", image, ".")
        self.run(*command, timeout_s=_BUILD_S)
        self.load(image)

    def build_spark(self, image: str) -> None:
        """Build the image with Spark and bring it to the nodes."""
        command = ("docker", "build", "-q", "--target", "spark", *self._options(), "-t", image, ".")
        self.run(*command, timeout_s=_BUILD_S)
        self.load(image)

    def _options(self) -> list[str]:
        """Return the Dockerfile's build arguments: an available base, the commit, and the machine's Debian sources."""
        have = self.run("docker", "images", "--format", "{{.Repository}}:{{.Tag}}").split()
        options = [f"--build-arg=BASE={name}" for name in _BASES if name in have][:1]
        commit = self.run("git", "rev-parse", "HEAD", check=False).strip()
        options.append(f"--build-arg=REVISION={commit}")
        options.append(f"--build-arg=COMPILED={os.environ.get('ORDERLYMQ_E2E_COMPILED', 'yes')}")
        if Path(_SOURCES).exists():
            options.append(f"--secret=id=apt,src={_SOURCES}")
        return options

    def build_java(self, image: str, folder: Path) -> None:
        """Build an image on a Java base, Debian's if none can be pulled, and bring it to the nodes."""
        have = self.run("docker", "images", "--format", "{{.Repository}}:{{.Tag}}").split()
        base = []
        if _BASES[1] in have:
            base = [f"--build-arg=BASE={_JAVA}"]
            if _JAVA not in have:
                source = f"--secret=id=apt,src={_SOURCES}"
                here = str(ROOT / "e2e")
                name = f"--build-arg=BASE={_BASES[1]}"
                file = str(ROOT / "e2e" / "java.Dockerfile")
                command = ("docker", "build", "-q", name, source, "-t", _JAVA, "-f", file, here)
                self.run(*command, timeout_s=_BUILD_S)
        self.run("docker", "build", "-q", *base, "-t", image, str(folder), timeout_s=_BUILD_S)
        self.load(image)

    def load(self, image: str) -> None:
        """Bring an image to the nodes; a cluster that is not kind's must be able to pull it."""
        if self.kind:
            say(f"loading {image}")
            self.run("kind", "load", "docker-image", image, "--name", self.kind, timeout_s=_BUILD_S)


def say(text: str) -> None:
    """Print a step that takes time."""
    sys.__stderr__.write(f"\n  [{text}]\n")  # type: ignore[union-attr]
    sys.__stderr__.flush()  # type: ignore[union-attr]


def find() -> Machine:
    """Return the cluster to run on; make one if there is none.

    Raises:
        MachineError: nothing here can make one.
    """
    if os.environ.get("KUBECONFIG"):
        return _machine(dict(os.environ))
    beside = ROOT.parent / "shared" / "kind" / "up"
    command = os.environ.get("ORDERLYMQ_KIND") or (
        shlex.quote(str(beside)) if beside.exists() else ""
    )
    if command:
        say("making a cluster")
        return _machine(_evaluated(f'lines=$({command}) && eval "$lines" && env -0'))
    if shutil.which("kind") and shutil.which("docker"):
        kubeconfig = ROOT / ".orderlymq" / "e2e.kubeconfig"
        kubeconfig.parent.mkdir(exist_ok=True)
        environment = dict(os.environ) | {"KUBECONFIG": str(kubeconfig), "DOCKER_BUILDKIT": "1"}
        machine = Machine(environment, _KIND_NAME)
        if _KIND_NAME not in machine.run("kind", "get", "clusters").split():
            say(f"making the kind cluster {_KIND_NAME}")
            create = ("kind", "create", "cluster", "--name", _KIND_NAME, "--config", "-")
            machine.run(*create, stdin=_KIND_SHAPE, timeout_s=_UP_S)
        machine.run("kind", "export", "kubeconfig", "--name", _KIND_NAME)
        return machine
    raise MachineError(
        "there is no Kubernetes to run on: set KUBECONFIG, or install kind and docker, or name a program in "
        "ORDERLYMQ_KIND that prints shell lines with KUBECONFIG"
    )


def _evaluated(script: str) -> dict[str, str]:
    try:
        done = subprocess.run(
            ["bash", "-c", script], stdout=subprocess.PIPE, timeout=_UP_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise MachineError(f"the cluster was not made within {_UP_S} s: `{script}`") from error
    if done.returncode != 0:
        raise MachineError(
            f"the cluster could not be made: `{script}` ended with {done.returncode}"
        )
    pairs = (item.partition("=") for item in done.stdout.decode().split("\0") if "=" in item)
    return {name: value for name, _, value in pairs}


def _machine(environment: dict[str, str]) -> Machine:
    machine = Machine(environment, "")
    for program in ("kubectl", "helm"):
        if shutil.which(program, path=environment["PATH"]) is None:
            raise MachineError(f"{program} is not on the PATH")
    shown = json.loads(machine.run("kubectl", "config", "view", "--minify", "-o", "json"))
    context = str(shown["current-context"])
    kind = context.removeprefix("kind-") if context.startswith("kind-") else ""
    machine.run("kubectl", "version", timeout_s=30)
    return Machine(environment, kind)
