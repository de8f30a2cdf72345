"""
Install each wheel in an empty environment and use it: ``python -m release.trial FOLDER``.

Each environment gets one wheel and what it asks for, nothing else. The exit code is 1 when one does not work
or the SDK is larger than it may be.
"""

import argparse
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from release.distributions import distributions, project
from release.wheels import SERVER

SDK_MIB_MAX: Final = 30
# Two modules from the list of compiled modules: one from the server's packages, one from the SDK's.
COMPILED_PROGRAM: Final = """
import orderlymq_protocol.frame.codec
import orderlymq_raft.node
print(all(m.__file__.endswith(".so") for m in (orderlymq_protocol.frame.codec, orderlymq_raft.node)))
"""


@dataclass(frozen=True, slots=True)
class Trial:
    """What must work after an installation: a program, subcommands of ``orderlymq``, and programs by extra."""

    program: str
    commands: tuple[str, ...] = ()
    extras: dict[str, str] = field(default_factory=dict)


TRIALS: Final = {
    "orderlymq": Trial(
        "import orderlymq, orderlymq.blocking, orderlymq.admin, orderlymq.oracle",
        ("send", "consume", "bench"),
        {
            "avro": "from orderlymq import Avro; Avro(int, {'type': 'int'})",
            "faststream": "from orderlymq.integrations.faststream import OrderlyMQBroker; OrderlyMQBroker()",
            "json": "from orderlymq import Json; Json(int)",
            "otel": "import orderlymq.telemetry",
            "taskiq": "from orderlymq.integrations.taskiq import OrderlyMQBroker; OrderlyMQBroker('t', 'g')",
        },
    ),
    "orderlymq-server": Trial(
        "import orderlymq_broker.app, orderlymq_nameserver.app, orderlymq_operator.local.supervisor; from orderlymq.testing import Cluster",
        ("up", "apply", "doctor"),
    ),
    "orderlymq-operator": Trial("import orderlymq_operator.kube.app"),
    "orderlymq-console": Trial("import orderlymq_console.app", ("console",)),
    "orderlymq-spark": Trial("import orderlymq_spark.datasource", ("pipeline",)),
}


def run(*arguments: str) -> str:
    """Run a program and return its output; raises CalledProcessError."""
    return subprocess.run(arguments, check=True, text=True, stdout=subprocess.PIPE).stdout


def size_mib(environment: Path) -> float:
    """Return the disk size of an environment's packages in MiB."""
    (packages,) = environment.glob("lib/python*/site-packages")
    size = sum(path.stat().st_size for path in packages.rglob("*") if path.is_file())
    return size / (1 << 20)


def uses_compiled(python: str) -> bool:
    """Return whether the environment of *python* imports the compiled modules."""
    return run(python, "-c", COMPILED_PROGRAM).strip() == "True"


def attempt(name: str, wheels: Path, folder: Path) -> float:
    """Install *name* in an empty environment in *folder* and use it; return its size in MiB."""
    environment = folder / name
    run(sys.executable, "-m", "venv", "--without-pip", str(environment))
    python = str(environment / "bin" / "python")
    install(python, wheels, name)
    run(python, "-c", TRIALS[name].program)
    if name == SERVER:
        expected = any(
            not wheel.name.endswith("-none-any.whl")
            for wheel in wheels.glob(f"{name.replace('-', '_')}-*.whl")
        )
        used = uses_compiled(python)
        print(f"{name}: uses {'compiled modules' if used else 'the sources'}", flush=True)
        if used != expected:
            sys.exit(f"{name}: expected {'compiled modules' if expected else 'the sources'}")
    for command in TRIALS[name].commands:
        run(str(environment / "bin" / "orderlymq"), command, "--help")
    size = size_mib(environment)
    for extra, program in TRIALS[name].extras.items():
        install(python, wheels, f"{name}[{extra}]")
        run(python, "-c", program)
    return size


def install(python: str, wheels: Path, what: str) -> None:
    """Install one of our distributions, or an extra, in the current version."""
    run(
        *(sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "--python", python),
        *("install", "--find-links", str(wheels), f"{what}=={project()['version']}"),
    )


def main() -> None:
    """Try all wheels in a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    wheels = parser.parse_args().folder.resolve()
    with tempfile.TemporaryDirectory() as folder:
        for distribution in distributions():
            size = attempt(distribution.name, wheels, Path(folder))
            print(f"{distribution.name}: works, {size:.0f} MiB installed", flush=True)
            if distribution.name == "orderlymq" and size > SDK_MIB_MAX:
                sys.exit(f"the SDK takes {size:.0f} MiB, more than {SDK_MIB_MAX}")


if __name__ == "__main__":
    main()
