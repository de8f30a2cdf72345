"""
Files of manifests to models, with errors that a person can act on.

Rule: all problems of all files are reported together. If anything is wrong, nothing is accepted. `combination` then
merges the resources of one cluster.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from orderlymq_operator.resources.kinds import KINDS, Cluster, Resource, User
from orderlymq_operator.resources.manifests import yamlsource
from orderlymq_operator.resources.manifests.problems import (
    ManifestError,
    Problem,
    alternatives,
    dotted,
    explain,
    found_text,
    not_one_of,
)
from orderlymq_operator.resources.meta import API_VERSIONS

_SIZE_MAX: Final = 8 << 20  # bytes of one file; enough for thousands of topics


class _PathError(Exception):
    """A path in a manifest is not a valid path."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """A resource, and the file and line where it was written."""

    resource: Resource
    file: str
    line: int

    @property
    def identity(self) -> tuple[str, str, str]:
        """Kind, namespace and name: two manifests with the same identity are the same object."""
        meta = self.resource.metadata
        return (self.resource.kind, meta.namespace or "", meta.name)

    def problem(self, field: str, message: str, line: int | None = None) -> Problem:
        """Return a problem of this manifest."""
        return Problem(self.file, line or self.line, field, message)


def read(paths: Iterable[Path]) -> list[Manifest]:
    """Read every document of every file.

    Raises:
        ManifestError: with all problems of all files.
    """
    return read_with_texts(paths)[0]


def read_with_texts(paths: Iterable[Path]) -> tuple[list[Manifest], list[tuple[str, str]]]:
    """Read as `read` does, and also return name and text of each file, because a pipe can be read only once.

    Raises:
        ManifestError: with all problems of all files.
    """
    manifests: list[Manifest] = []
    texts: list[tuple[str, str]] = []
    problems: list[Problem] = []
    for path in paths:
        try:
            texts.append((str(path), _text(path)))
            manifests += parse(texts[-1][1], str(path))
        except ManifestError as error:
            problems += error.problems
    problems += _duplicates(manifests)
    if problems:
        raise ManifestError(problems)
    return manifests, texts


def parse(text: str, file: str) -> list[Manifest]:
    """Read the documents of *text*; *file* names it in errors.

    Raises:
        ManifestError: with all problems.
    """
    manifests: list[Manifest] = []
    problems: list[Problem] = []
    try:
        for source in yamlsource.documents(text):
            found = _validate(source, file)
            if isinstance(found, Manifest):
                manifests.append(found)
            else:
                problems += found
    except yamlsource.SourceError as error:
        problems.append(Problem(file, error.line, "", str(error)))
    if problems:
        raise ManifestError(problems)
    return manifests


def _duplicates(manifests: Sequence[Manifest]) -> list[Problem]:
    problems = []
    seen: dict[tuple[str, str, str], Manifest] = {}
    for manifest in manifests:
        first = seen.setdefault(manifest.identity, manifest)
        if first is not manifest:
            kind, _, name = manifest.identity
            problems.append(
                manifest.problem(
                    "metadata.name",
                    f"{kind} {name!r} is already declared at {first.file}:{first.line}",
                )
            )
    return problems


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > _SIZE_MAX:
            raise ManifestError([Problem(str(path), 0, "", f"larger than {_SIZE_MAX >> 20} MiB")])
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        message = "no such file; give the path of a YAML file with manifests"
    except UnicodeDecodeError:
        message = "not UTF-8 text"
    except OSError as error:
        message = f"cannot be read: {error.strerror}"
    raise ManifestError([Problem(str(path), 0, "", message)])


def _validate(source: yamlsource.Source, file: str) -> Manifest | list[Problem]:
    data = source.data
    if not isinstance(data, dict):
        return [Problem(file, source.line(()), "", f"expected a mapping, found {found_text(data)}")]
    for field, allowed in (("apiVersion", list(API_VERSIONS)), ("kind", list(KINDS))):
        value = data.get(field)
        if value not in allowed:
            message = (
                f"missing; write {alternatives(allowed)}"
                if field not in data
                else not_one_of(value, allowed)
            )
            return [Problem(file, source.line((field,)), field, message)]

    model = KINDS[str(data["kind"])]
    try:
        resource = model.model_validate(data)
        match resource:
            case User():
                resource = _beside_manifest(resource, file)
            case Cluster():
                resource = _certificates_beside_manifest(resource, file)
        return Manifest(resource, file, source.line(()))
    except ValidationError as error:
        return [
            _problem(details, source, file, model) for details in error.errors(include_url=False)
        ]
    except _PathError as error:
        return [Problem(file, source.line(("spec",)), "spec", str(error))]


def _certificates_beside_manifest(cluster: Cluster, file: str) -> Cluster:
    """Resolve the paths of key material relative to the manifest."""
    tls = cluster.spec.tls
    names = ("certificate_file", "key_file", "ca_file")
    paths = {name: _beside(path, file) for name in names if (path := getattr(tls, name))}
    if not paths:
        return cluster
    return cluster.with_spec(tls=tls.model_copy(update=paths))


def _beside_manifest(user: User, file: str) -> User:
    """Resolve the path of a secret relative to the manifest."""
    source = user.spec.secret_from
    if source is None or source.file is None:
        return user
    path = _beside(source.file, file)
    return user.with_spec(secret_from=source.model_copy(update={"file": path}))


def _beside(path: str, file: str) -> str:
    """Return the absolute form of *path*, relative to *file*.

    Links are not resolved, because tools that renew certificates and secrets point them to the next file. A folder
    before `..` is kept too, because it may be a link to another place.

    Raises:
        _PathError: the folder of *file* has a name that is not valid text.
    """
    folder = os.path.realpath(os.path.dirname(file) or ".")
    while path.startswith("./"):
        path = path[2:].lstrip("/")
    found = os.path.join(folder, path)
    if not _is_text(found):
        raise _PathError(f"the path {found!a} is not UTF-8; move the files to another folder")
    return found


def _is_text(path: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in path)


def _problem(
    details: ErrorDetails, source: yamlsource.Source, file: str, model: type[BaseModel]
) -> Problem:
    path = details["loc"]
    return Problem(file, source.line(path), dotted(path), explain(details, model))
