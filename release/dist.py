"""
Make all that is delivered in one folder: ``python -m release.dist FOLDER``.

Four wheels, with ``--compiled`` also the server's compiled wheel for this platform, the chart's package, a bill of materials (CycloneDX) for each image, and SHA256SUMS over all of them.
"""

import argparse
import gzip
import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from release.distributions import ROOT, distributions, project
from release.wheels import SERVER, build, build_compiled

# The lock files that an image installs in addition to our own wheels.
BILLS: Final = {"orderlymq": "kubernetes.lock", "orderlymq-spark": "spark.lock"}


def package_chart(into: Path) -> Path:
    """Pack the chart as ``helm package`` does; equal sources make equal bytes."""
    chart = ROOT / "charts" / "orderlymq"
    packed = into / f"orderlymq-{project()['version']}.tgz"
    with (
        packed.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as archive,
    ):
        for path in sorted(each for each in chart.rglob("*") if each.is_file()):
            entry = tarfile.TarInfo(str(path.relative_to(chart.parent)))
            content = path.read_bytes()
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    return packed


def write_bill(image: str, lock: str, into: Path) -> None:
    """Write the third-party distributions in *image*, from the lock file with which it is built."""
    subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "cyclonedx_py",
                "requirements",
                str(ROOT / "requirements" / lock),
            ),
            *("--pyproject", str(ROOT / "pyproject.toml"), "--output-reproducible"),
            *("--output-file", str(into / f"{image}.cdx.json")),
        ],
        check=True,
    )

    path = into / f"{image}.cdx.json"
    bill = with_licences(json.loads(path.read_text()))
    path.write_text(json.dumps(bill, indent=2, sort_keys=True) + "\n")


def with_licences(bill: dict[str, Any]) -> dict[str, Any]:
    """Return a bill with our licence and the distributions' licences, as their installed versions declare them."""
    about = bill["metadata"]
    ours = {**about["component"], "licenses": [{"expression": project()["license"]}]}
    parts = [
        {**each, "licenses": found} if (found := _licences(each["name"], each["version"])) else each
        for each in bill["components"]
    ]
    return {**bill, "metadata": {**about, "component": ours}, "components": parts}


def _licences(name: str, version: str) -> list[dict[str, Any]]:
    """Return a licence in CycloneDX's form: an SPDX expression, or the names that a distribution gives."""
    try:
        found = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return []
    if found["Version"] != version:
        return []  # the lock also has another version, for another Python
    for expression in found.get_all("License-Expression", ()):
        return [{"expression": expression}]
    named = [each for each in found.get_all("Classifier", ()) if each.startswith("License :: ")]
    texts = [each.rpartition(" :: ")[2] for each in named]
    texts = texts or [each.partition("\n")[0] for each in found.get_all("License", ())]
    return [{"license": {"name": text}} for text in texts if text]


def write_checksums(into: Path) -> None:
    """Write SHA256SUMS as ``sha256sum --check`` reads it."""
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(into.iterdir())
        if path.name != "SHA256SUMS"
    ]
    (into / "SHA256SUMS").write_text("".join(lines), encoding="ascii")


def main() -> None:
    """Build all deliverables into an empty folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--compiled", action="store_true", help="also compile the server; needs a C compiler"
    )
    options = parser.parse_args()
    into = options.folder
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    for distribution in distributions():
        build(distribution, into)
        print(f"{distribution.name}: built", flush=True)
    if options.compiled:
        print(f"{SERVER}: compiling for this platform, about two minutes", flush=True)
        build_compiled(into)
        print(f"{SERVER}: compiled", flush=True)
    package_chart(into)
    for image, lock in BILLS.items():
        write_bill(image, lock, into)
    write_checksums(into)
    print((into / "SHA256SUMS").read_text(), end="")


if __name__ == "__main__":
    main()
