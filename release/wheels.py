"""
Build one wheel for each distribution: ``python -m release.wheels FOLDER``.

Each is built in a folder of its own that holds links to the sources and a pyproject.toml made from
``distributions.py``, by the same build backend as the repository's own. `build_compiled` makes a second wheel of the
server, for this platform and Python, that also holds the compiled modules (docs/adr/0013-compiled-modules.md).
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from release.distributions import ROOT, Distribution, distributions, metadata

SERVER: Final = "orderlymq-server"
# The folder in which `make compiled` puts its copy.
COMPILED: Final = ROOT / "build" / "compiled"
# Tells the build backend that a wheel fits one platform and one Python version.
PLATFORM_HOOK: Final = """from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PlatformHook(BuildHookInterface):
    def initialize(self, version, build_data):
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
"""


def toml(table: dict[str, Any]) -> str:
    """Return *table* as TOML; every value is written inline, in a form like JSON's."""
    return "".join(f"{line}\n" for line in _lines(table, ()))


def _lines(table: dict[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    plain = {key: value for key, value in table.items() if not isinstance(value, dict)}
    if path:
        yield f"[{'.'.join(json.dumps(key) for key in path)}]"
    for key, value in plain.items():
        yield f"{json.dumps(key)} = {_value(value)}"
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _lines(value, (*path, key))


def _value(value: object) -> str:
    # JSON's strings, numbers and lists are valid TOML; lists may contain tables (authors).
    if isinstance(value, list):
        return "[" + ", ".join(_value(each) for each in value) + "]"
    if isinstance(value, dict):
        pairs = ", ".join(f"{json.dumps(key)} = {_value(each)}" for key, each in value.items())
        return "{" + pairs + "}"
    return json.dumps(value, ensure_ascii=False)


def stage(distribution: Distribution, folder: Path, compiled: Path | None = None) -> None:
    """
    Prepare *folder* with everything that the build backend needs for *distribution*.

    *compiled* is an installed copy that was compiled. Its extensions are then placed next to the sources, and the
    wheel fits only this platform. It also contains extensions of the protocol's modules: the SDK's own wheel stays
    pure.
    """
    root = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    targets = [_place(package) for package in distribution.packages]
    wheel: dict[str, Any] = {"packages": [str(target) for target in targets]}
    if distribution.exclude:
        wheel["exclude"] = distribution.exclude
    for package, target in zip(distribution.packages, targets, strict=True):
        shutil.copytree(
            ROOT / package,
            folder / target,
            ignore=shutil.ignore_patterns("__pycache__", "*.so"),
        )
    for name in (root["project"]["readme"], *root["project"]["license-files"]):
        shutil.copy(ROOT / name, folder)
    if any(len(target.parts) > 1 for target in targets):
        # This is part of a package whose rest is in another distribution, so the folder keeps its path.
        wheel = {"only-include": wheel["packages"]}
    if compiled is not None:
        extensions = [path.relative_to(compiled) for path in compiled.rglob("*.so")]
        for extension in extensions:
            (folder / extension.parent).mkdir(parents=True, exist_ok=True)
            shutil.copy(compiled / extension, folder / extension)
        included = {str(target) for target in targets} | {each.parts[0] for each in extensions}
        wheel = {"only-include": sorted(included), "hooks": {"custom": {}}}
        if distribution.exclude:
            wheel["exclude"] = distribution.exclude
        (folder / "hatch_build.py").write_text(PLATFORM_HOOK, encoding="utf-8")
    whole = {
        "build-system": root["build-system"],
        "project": metadata(distribution),
        "tool": {"hatch": {"build": {"targets": {"wheel": wheel}}}},
    }
    (folder / "pyproject.toml").write_text(toml(whole), encoding="utf-8")


def _place(package: str) -> Path:
    """Return the path of a package inside a wheel: its path without the first folder."""
    return Path(*Path(package).parts[1:])


def build(distribution: Distribution, into: Path, compiled: Path | None = None) -> None:
    """Build the wheel of *distribution*; raises CalledProcessError if pip fails."""
    with tempfile.TemporaryDirectory() as folder:
        stage(distribution, Path(folder), compiled)
        _pip("wheel", "--no-deps", "--wheel-dir", str(into), folder)


def build_compiled(into: Path) -> None:
    """
    Add the server's wheel for this platform to the wheels in *into*.

    The modules from ``make compiled`` are used if they are current; otherwise compiling takes two minutes. Raises
    CalledProcessError if mypyc or a C compiler is missing.
    """
    known = {each.name: each for each in distributions()}
    version = metadata(known[SERVER])["version"]
    compiler = [sys.executable, str(ROOT / "broker" / "compile.py")]
    if subprocess.run([*compiler, "--current", str(COMPILED)], check=False).returncode == 0:
        build(known[SERVER], into, COMPILED)
        return
    with tempfile.TemporaryDirectory() as folder:
        for name in (*known[SERVER].siblings, SERVER):
            wheel = into / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
            _pip("install", "--no-deps", "--target", folder, str(wheel))
        subprocess.run([*compiler, folder], check=True)
        build(known[SERVER], into, Path(folder))


def _pip(*words: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", *words], check=True
    )


def main() -> None:
    """Build all wheels."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    into = parser.parse_args().folder
    into.mkdir(parents=True, exist_ok=True)
    for distribution in distributions():
        print(f"{distribution.name}: building", flush=True)
        build(distribution, into)


if __name__ == "__main__":
    main()
