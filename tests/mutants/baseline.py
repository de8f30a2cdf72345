"""
What is known of the tests without a mutant: how long each takes, and which functions it calls.

It is stored in ``build/mutants``. The data of a test module stays valid while that module, the core, and what its
tests share stay unchanged. So after adding a test the next run measures only that test's module.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import pytest

# In addition to modules of tests: the packages that they call, and what they share.
_SHARED: Final = ("broker", "protocol", "tests/raft", "tests/broker", "tests/sim")


class Baseline:
    """The tests' times and calls."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._file = root / "build" / "mutants" / "baseline.json"
        self._modules: dict[str, dict[str, Any]] = {}
        self._shared = self._digest(
            path
            for folder in _SHARED
            for path in sorted((root / folder).rglob("*"))
            if path.suffix in {".py", ".txt"} and not path.name.startswith("test_")
        )

    @property
    def took_s(self) -> dict[str, float]:
        """Return the processor time of each test."""
        return {
            name: took for each in self._modules.values() for name, took in each["took"].items()
        }

    @property
    def callers(self) -> dict[str, set[str]]:
        """Return the tests that call each function, named by its path and qualified name."""
        found: dict[str, set[str]] = {}
        for module in self._modules.values():
            for function, tests in module["callers"].items():
                found.setdefault(function, set()).update(tests)
        return found

    def unknown(self, items: Sequence[pytest.Item]) -> list[pytest.Item]:
        """Return the tests without valid data."""
        stored = json.loads(self._file.read_text()) if self._file.exists() else {}
        names = {item.nodeid for item in items}
        for path in dict.fromkeys(self._path(item.nodeid) for item in items):
            here = {name for name in names if self._path(name) == path}
            module = stored.get(path)
            if module is None or module["digest"] != self._of(path) or set(module["took"]) != here:
                module = {"digest": self._of(path), "took": {}, "callers": {}}
            self._modules[path] = module
        return [item for item in items if not self._modules[self._path(item.nodeid)]["took"]]

    def learn(self, took: Mapping[str, float], callers: Mapping[str, Iterable[str]]) -> None:
        """Store the measurements of a run of the unknown tests."""
        for name, seconds in took.items():
            self._modules[self._path(name)]["took"][name] = seconds
        for function, tests in callers.items():
            for name in tests:
                self._modules[self._path(name)]["callers"].setdefault(function, []).append(name)
        stored = json.loads(self._file.read_text()) if self._file.exists() else {}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps(stored | self._modules))

    @staticmethod
    def _path(nodeid: str) -> str:
        return nodeid.partition("::")[0]

    def _of(self, path: str) -> str:
        return self._shared + self._digest([self._root / path])

    @staticmethod
    def _digest(paths: Iterable[Path]) -> str:
        digest = blake2b(digest_size=8)
        for path in paths:
            digest.update(path.read_bytes())
        return digest.hexdigest()
