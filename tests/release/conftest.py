"""Helm: the program on the path, or one that Go builds from its source once, into build/tools."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest
from release.distributions import ROOT

from tests.alone import alone

HELM_VERSION: Final = "v3.19.0"


@pytest.fixture(scope="session")
def helm() -> Path:
    """Return the program."""
    found = shutil.which("helm")
    if found:
        return Path(found)
    if not shutil.which("go"):
        pytest.skip("neither helm nor go is installed")
    tools = ROOT / "build" / "tools"
    built = tools / "helm"
    with alone(tools):
        if not built.exists():
            source = f"helm.sh/helm/v3/cmd/helm@{HELM_VERSION}"
            environment = {**os.environ, "GOBIN": str(tools), "GOFLAGS": "-trimpath"}
            subprocess.run(["go", "install", source], env=environment, check=True)
    return built
