"""
The public methods of RocketMQ's Java clients, read from the jars that Apache publishes.

`python -m tests.client.parity.java` writes ``methods.json`` again; it needs a JDK and Maven. The names
are those of ``javap -public`` without constructors; overloads count once.
"""

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Final

VERSIONS: Final = ("4.9.8", "5.3.3")
CLASSES: Final = {
    "DefaultMQProducer": "org.apache.rocketmq.client.producer",
    "TransactionMQProducer": "org.apache.rocketmq.client.producer",
    "DefaultMQPushConsumer": "org.apache.rocketmq.client.consumer",
    "DefaultLitePullConsumer": "org.apache.rocketmq.client.consumer",
    "DefaultMQPullConsumer": "org.apache.rocketmq.client.consumer",
    "DefaultMQAdminExt": "org.apache.rocketmq.tools.admin",
    "ClientConfig": "org.apache.rocketmq.client",
}
HERE: Final = Path(__file__).parent
_POM: Final = HERE.parents[1] / "clients" / "java" / "pom.xml"
_COPY: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"


def methods(jars: Path, package: str, name: str) -> list[str]:
    """Return the names of the public methods of a class, sorted."""
    command = ["javap", "-public", "-cp", f"{jars}/*", f"{package}.{name}"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    return sorted(set(re.findall(r" (\w+)\(", shown)) - {name})


def main() -> None:
    """Write ``methods.json``: class, method, versions that have it."""
    found: dict[str, dict[str, list[str]]] = {name: {} for name in CLASSES}
    for version in VERSIONS:
        with tempfile.TemporaryDirectory() as folder:
            maven = ["mvn", "-q", "-B", "-f", str(_POM), f"-Drocketmq.version={version}", _COPY]
            where = ["-DincludeScope=runtime", f"-DoutputDirectory={folder}"]
            subprocess.run([*maven, *where], check=True)
            for name, package in CLASSES.items():
                for method in methods(Path(folder), package, name):
                    found[name].setdefault(method, []).append(version)
    text = json.dumps(found, indent=1, sort_keys=True)
    (HERE / "methods.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
