"""
Files of manifests to models, with errors that a person can act on.

Rule: all problems of all files are reported together, each with file, line, field path, the value found and the
nearest valid name. If anything is wrong, nothing is accepted. `combine` then merges the resources of one cluster as
`kubectl apply` does: what a file does not mention stays as it was.
"""

import difflib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails

from orderlymq_operator.resources.kinds import (
    KINDS,
    NAME_FIELDS,
    Backup,
    Cluster,
    ConsumerGroup,
    Desired,
    Pipeline,
    Resource,
    ScheduledBackup,
    Topic,
    User,
    Using,
    declared_name,
    is_brokers_own,
    is_deleted_with,
)
from orderlymq_operator.resources.manifests import yamlsource
from orderlymq_operator.resources.meta import API_VERSIONS

_SIZE_MAX: Final = 8 << 20  # bytes of one file; enough for thousands of topics
_CALLED: Final = {"Topic": "topic", "ConsumerGroup": "consumer group", "User": "access key"}
R = TypeVar("R", Topic, ConsumerGroup, User)
_FOUND_MAX: Final = 60  # number of characters of a wrong value that an error repeats


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of a manifest."""

    file: str
    line: int  # 0 for the whole file
    field: str
    message: str

    def __str__(self) -> str:
        line = f":{self.line}" if self.line else ""
        place = f"{self.file}{line}: " if self.file else ""
        return place + (f"{self.field}: {self.message}" if self.field else self.message)


class ManifestError(ValueError):
    """Manifests that cannot be used, with all their problems."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


class _PathError(Exception):
    """A path in a manifest is not a valid path."""


class OtherClusterError(ManifestError):
    """The manifests belong to another cluster than the data directory."""


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


def combine(
    manifests: Sequence[Manifest], present: Desired | None, *, prune: bool = False
) -> Desired:
    """Merge *manifests* into the present desired state, and check what only the whole can show.

    Pipelines were checked when they were read. They are left out here, because `orderlymq pipeline run` runs them and
    not the local backend.

    Args:
        manifests: the manifests just read.
        present: the desired state before, or None for a new cluster.
        prune: whether resources that are not in *manifests* are removed.

    Raises:
        OtherClusterError: *present* is another cluster.
        ManifestError: no cluster, two clusters, a reference to a missing one, a name used twice, what only Kubernetes
            can do, or *prune* without a manifest.
    """
    manifests = [each for each in manifests if not isinstance(each.resource, Pipeline)]
    if prune and not manifests:
        text = "--prune without a manifest would remove everything; name the files of the manifests to keep"
        raise ManifestError([Problem("manifests", 1, "", text)])
    cluster = _only_cluster(manifests, present)
    if present is not None and present.cluster.metadata.name != cluster.metadata.name:
        raise OtherClusterError(
            [
                manifest.problem(
                    "metadata.name",
                    f"the data directory belongs to Cluster {present.cluster.metadata.name!r}; "
                    "choose another --data-dir for this one",
                )
                for manifest in manifests
                if isinstance(manifest.resource, Cluster)
            ]
        )
    wanted = {manifest.identity: manifest for manifest in manifests}
    kept: tuple[Resource, ...] = (
        ()
        if present is None or prune
        else (*present.topics, *present.consumer_groups, *present.users)
    )
    resources: list[Manifest] = [Manifest(resource, "(applied before)", 0) for resource in kept]
    resources = [known for known in resources if known.identity not in wanted]
    resources += wanted.values()
    problems = (
        _only_kubernetes(manifests) + _dangling(resources, cluster) + _shared_names(resources)
    )
    if problems:
        raise ManifestError(problems)

    found = [manifest.resource for manifest in resources]

    def of(kind: type[R]) -> tuple[R, ...]:
        return tuple(sorted((each for each in found if isinstance(each, kind)), key=declared_name))

    desired = Desired(cluster, of(Topic), of(ConsumerGroup), users=of(User))
    return _with_deletions(desired, present)


def _with_deletions(desired: Desired, present: Desired | None) -> Desired:
    """Record what must be deleted until it is deleted, so that a crash in between does not lose it."""
    if present is None:
        return desired
    return replace(
        desired,
        # A manifest must not delete topics that brokers reserve, although an earlier version accepted such a
        # manifest.
        deleted_topics=frozenset(
            name
            for name in _gone(present.topics, present.deleted_topics, desired.topics)
            if not is_brokers_own(name, desired.cluster)
        ),
        deleted_consumer_groups=_gone(
            present.consumer_groups, present.deleted_consumer_groups, desired.consumer_groups
        ),
        # An account that is no longer declared must give no access.
        deleted_users=_gone(present.users, present.deleted_users, desired.users),
    )


def _gone(
    before: Sequence[Resource], remembered: frozenset[str], now: Sequence[Resource]
) -> frozenset[str]:
    deleted = {declared_name(each) for each in before if is_deleted_with(each)}
    return frozenset((deleted | remembered) - {declared_name(each) for each in now})


def _only_cluster(manifests: Sequence[Manifest], present: Desired | None) -> Cluster:
    clusters = [manifest for manifest in manifests if isinstance(manifest.resource, Cluster)]
    match [manifest.resource for manifest in clusters]:
        case [Cluster() as cluster]:
            return cluster
        case [] if present is not None:
            return present.cluster
        case []:
            first = manifests[0] if manifests else None
            raise ManifestError(
                [
                    Problem(
                        first.file if first else "manifests",
                        1,
                        "",
                        "no Cluster is declared; add a document with `kind: Cluster`",
                    )
                ]
            )
        case _:
            raise ManifestError(
                [
                    manifest.problem(
                        "", "a data directory can have only one Cluster; remove this one"
                    )
                    for manifest in clusters[1:]
                ]
            )


def _only_kubernetes(manifests: Sequence[Manifest]) -> list[Problem]:
    """Find manifests that only Kubernetes carries out.

    If they were ignored silently, a user would rely on backups that are never made.
    """
    problems = []
    for manifest in manifests:
        resource = manifest.resource
        if isinstance(resource, Backup | ScheduledBackup):
            text = f"a {resource.kind} works only in Kubernetes; here, run `orderlymq backup create`, if you like from cron"
            problems.append(manifest.problem("kind", text))
        elif isinstance(resource, Cluster) and resource.spec.bootstrap is not None:
            text = "it works only in Kubernetes; here, remove it and run `orderlymq up --from-backup PLACE`"
            problems.append(manifest.problem("spec.bootstrap", text))
    return problems


def _dangling(manifests: Sequence[Manifest], cluster: Cluster) -> list[Problem]:
    name = cluster.metadata.name
    problems = []
    for manifest in manifests:
        resource = manifest.resource
        if isinstance(resource, Cluster | Using) or resource.spec.cluster_ref.name == name:
            continue
        wrong = resource.spec.cluster_ref.name
        problems.append(
            manifest.problem(
                "spec.clusterRef.name",
                f"there is no Cluster {wrong!r}; the Cluster here is {name!r}",
            )
        )
    return problems


def _shared_names(manifests: Sequence[Manifest]) -> list[Problem]:
    """Find two objects that declare the same topic, consumer group or access key."""
    problems = []
    seen: dict[tuple[str, str], Manifest] = {}
    for manifest in manifests:
        kind = manifest.resource.kind
        if kind not in NAME_FIELDS:
            continue
        key = kind, declared_name(manifest.resource)
        first = seen.setdefault(key, manifest)
        if first is not manifest:
            owner = first.resource.metadata.name
            problems.append(
                manifest.problem(
                    f"spec.{to_camel(NAME_FIELDS[kind])}",
                    f"the {_CALLED[kind]} {key[1]!r} is already declared by {owner!r}",
                )
            )
    return problems


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
        return [Problem(file, source.line(()), "", f"expected a mapping, found {_found(data)}")]
    for field, allowed in (("apiVersion", list(API_VERSIONS)), ("kind", list(KINDS))):
        value = data.get(field)
        if value not in allowed:
            message = (
                f"missing; write {_alternatives(allowed)}"
                if field not in data
                else _not_one_of(value, allowed)
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
    return Problem(file, source.line(path), _dotted(path), _explain(details, model))


def _explain(details: ErrorDetails, model: type[BaseModel]) -> str:
    context: Mapping[str, Any] = details.get("ctx", {})
    found = _found(details["input"])
    match details["type"]:
        case "extra_forbidden":
            *parents, name = details["loc"]
            names = _fields_at(model, parents)
            return f"unknown field{_nearest(str(name), names)}"
        case "missing":
            return "this field is required"
        case "literal_error":
            allowed = re.findall(r"'([^']*)'|(\d+)", str(context["expected"]))
            return _not_one_of(details["input"], [text or int(number) for text, number in allowed])
        case "value_error":
            return str(context["error"])
        case "string_pattern_mismatch":
            return f"found {found}, expected {_described(str(context['pattern']))}"
        case _:
            expected = details["msg"].removeprefix("Input should be ").removeprefix("Input should ")
            return f"found {found}, expected {expected[0].lower()}{expected[1:]}"


def _described(pattern: str) -> str:
    """Return a pattern of ours in words, because the bare pattern helps few people."""
    return {
        r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$": "lower-case letters, digits and `-`",
        r"^[%a-zA-Z0-9_-]+$": "letters, digits, `_`, `-` and `%`",
    }.get(pattern) or (
        "a size such as 20Gi"
        if "Ki|" in pattern
        else "a time such as 72h or 500ms"
        if "(ms|s|" in pattern
        else f"text that matches {pattern}"
    )


def _fields_at(model: type[BaseModel], path: Sequence[str | int]) -> list[str]:
    """Return the field names of the part of *model* that *path* leads to."""
    for step in path:
        if isinstance(step, int):
            continue
        for name, field in model.model_fields.items():
            if step in (field.alias, name):
                inner = _models_in(field.annotation)
                model = inner[0] if inner else model
                break
    return [field.alias or name for name, field in model.model_fields.items()]


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in getattr(annotation, "__args__", ()) for model in _models_in(part)]


def _not_one_of(value: object, allowed: Sequence[object]) -> str:
    near = _nearest(str(value), [str(item) for item in allowed])
    return f"found {_found(value)}, expected {_alternatives(allowed)}{near}"


def _nearest(name: str, names: Sequence[str]) -> str:
    by_lower = {candidate.lower(): candidate for candidate in names}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return f"; did you mean `{by_lower[close[0]]}`?" if close else ""


def _alternatives(allowed: Sequence[object]) -> str:
    words = [str(item) for item in allowed]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _found(value: object) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case dict():
            return "a mapping"
        case list():
            return "a list"
        case str():
            return f"the text {value[:_FOUND_MAX]!r}"
        case _:
            return str(value)


def _dotted(path: Sequence[str | int]) -> str:
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return "".join(steps).removeprefix(".")
