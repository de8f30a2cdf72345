"""
Pipelines of a laptop: their manifests, and the files that `orderlymq pipeline run` leaves next to a checkpoint.

Rules: this module only reads and takes no lock, so a driver that starts meanwhile is never refused. Each file is small or is
read in part. Relative paths start at this process's working directory, as those of `orderlymq pipeline run` do.
"""

import asyncio
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError

from orderlymq_console.models import Figure, Model
from orderlymq_console.pipelinemodels import Audit, AuditFinding, AuditState, unknown_audit
from orderlymq_console.pipelines.reports import (
    FINDINGS_MAX,
    PIPELINES_MAX,
    QUEUES_MAX,
    PipelineReport,
    PipelinesUnread,
    QueueReport,
    SpecReport,
    shortened,
)

#: The name servers that `orderlymq pipeline run` uses if a manifest names none.
DEFAULT_SERVERS: Final = "127.0.0.1:9876"
_MANIFEST_SIZE_MAX: Final = 256 * 1024
_STATUS_SIZE_MAX: Final = 4 * 1024 * 1024  # offsets of thousands of queues
_FINDINGS_SIZE_MAX: Final = 1024 * 1024
# A streaming audit leaves a file for each batch; only the newest are read.
_BATCHES_MAX: Final = 1_000
_LOCKS: Final = Path("/proc/locks")
_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


class StatusFile(Model):
    """The file `status.json` next to a checkpoint; *offsets* is by topic, broker group and queue."""

    phase: str
    last_batch: int | None = None
    rows: int | None = None
    rows_per_second: float | None = None
    offsets: dict[str, dict[str, dict[str, int]]] | None = None
    lag: int | None = None
    updated_at_ms: int | None = None
    last_error: str | None = None


class PipelineFiles:
    """Manifests: each path is a file, or a folder of files that end with .yaml or .yml. A file is parsed again when it changes."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)
        self._parsed: dict[Path, _Parsed] = {}

    async def read(self) -> tuple[PipelineReport, ...]:
        """Read the manifests and the results of their runs, in a thread.

        Raises:
            PipelinesUnread: A path does not exist or cannot be listed, or there are more than `PIPELINES_MAX` pipelines.
        """
        return await asyncio.to_thread(self._read)

    def _read(self) -> tuple[PipelineReport, ...]:
        found: list[PipelineReport] = []
        parsed: dict[Path, _Parsed] = {}
        for file in self._files():
            parsed[file] = _parsed(file, self._parsed.get(file))
            found += _pipelines_in(file, parsed[file])
            if len(found) > PIPELINES_MAX:
                raise PipelinesUnread(
                    f"there are more than {PIPELINES_MAX} pipelines; name fewer files"
                )
        self._parsed = parsed
        return tuple(sorted(found, key=lambda each: (each.name, each.place)))

    def _files(self) -> Iterator[Path]:
        for path in self._paths:
            try:
                if path.is_dir():
                    yield from sorted(
                        each for each in path.iterdir() if each.suffix in (".yaml", ".yml")
                    )
                else:
                    path.stat()
                    yield path
            except OSError as error:
                raise PipelinesUnread(f"{path}: {error.strerror or error}") from error


@dataclass(frozen=True, slots=True)
class _Parsed:
    """The Pipelines of a file, or why it cannot be read; *version* is the file's size and modification time."""

    version: tuple[int, int]
    documents: tuple[dict[str, Any], ...] = ()
    unknown: str = ""


def _parsed(file: Path, before: _Parsed | None) -> _Parsed:
    """Read a file, unless it is unchanged; skip other kinds of resources."""
    version = (0, 0)
    try:
        status = file.stat()
        version = (status.st_size, status.st_mtime_ns)
        if before is not None and before.version == version:
            return before
        documents = list(yaml.safe_load_all(_text(file, _MANIFEST_SIZE_MAX)))
    except (OSError, ValueError, yaml.YAMLError) as error:
        return _Parsed(version, unknown=f"the file cannot be read: {_reason(error)}")
    kinds = (each for each in documents if isinstance(each, dict))
    return _Parsed(version, tuple(each for each in kinds if each.get("kind") == "Pipeline"))


def _pipelines_in(file: Path, parsed: _Parsed) -> Iterator[PipelineReport]:
    if parsed.unknown:
        yield PipelineReport(name=file.stem, place=str(file), unknown=parsed.unknown)
    for found in parsed.documents:
        yield _pipeline(file, found)


def _pipeline(file: Path, found: dict[str, Any]) -> PipelineReport:
    metadata = found.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    named = name if isinstance(name, str) else file.stem
    try:
        spec = SpecReport.model_validate(found.get("spec"))
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"])
        reason = f"spec {where}: {error.errors()[0]['msg']}"
        return PipelineReport(name=named, place=str(file), unknown=shortened(reason))
    if not spec.name_servers:
        bootstrap = (
            spec.source.model_copy(update={"bootstrap": DEFAULT_SERVERS}) if spec.source else None
        )
        spec = spec.model_copy(update={"source": bootstrap, "bootstrap": DEFAULT_SERVERS})
    audit = _audit(spec) if spec.type == "order-audit" else None
    return _with_status(PipelineReport(name=named, place=str(file), spec=spec, audit=audit))


def _with_status(known: PipelineReport) -> PipelineReport:
    """Add what the status file next to the checkpoint says."""
    spec = known.spec
    assert spec is not None
    checkpoint = spec.checkpoint
    if checkpoint is None or (spec.type == "order-audit" and not spec.stream):
        text = f"a run of {spec.type} leaves no state; its command prints the result"
        return replace(known, unknown=text)
    if _ADDRESS.match(checkpoint):
        text = f"its state is in the object store {checkpoint}, which the console does not read"
        return replace(known, unknown=text)
    folder = Path(checkpoint).absolute()
    try:
        status = StatusFile.model_validate_json(_text(folder / "status.json", _STATUS_SIZE_MAX))
        queues = tuple(_queues(status.offsets or {}))
    except FileNotFoundError:
        text = f"there is no {folder}/status.json: it has not run, or it ran in another folder or on another machine"
        return replace(known, unknown=text)
    except (OSError, ValueError) as error:
        return replace(known, unknown=f"{folder}/status.json cannot be read: {_reason(error)}")
    phase, note = _life(status.phase, folder)
    return replace(
        known,
        phase=phase,
        note=note,
        changed_ms=status.updated_at_ms,
        last_batch=status.last_batch,
        rows=status.rows,
        rows_per_second=status.rows_per_second,
        lag=status.lag,
        queues=queues,
        last_error=shortened(status.last_error),
    )


def _queues(offsets: dict[str, dict[str, dict[str, int]]]) -> list[QueueReport]:
    found = [
        QueueReport(topic, broker_group, int(queue), offset)
        for topic, groups in sorted(offsets.items())
        for broker_group, queues in sorted(groups.items())
        for queue, offset in sorted(queues.items(), key=lambda each: int(each[0]))
    ]
    if len(found) > QUEUES_MAX:
        raise ValueError(f"it has {len(found)} queues; the console reads at most {QUEUES_MAX}")
    return found


def _life(phase: str, checkpoint: Path) -> tuple[str, str]:
    """Return the phase, checked against the lock that a living driver holds, and a note about it."""
    if phase not in ("Starting", "Running"):
        return phase, ""
    try:
        number = (checkpoint / "driver.lock").stat().st_ino
        locks = _LOCKS.read_text()
    except OSError:
        return phase, "It is unknown here whether its driver still runs."
    if any(_is_lock_on(line, number) for line in locks.splitlines()):
        return phase, ""
    return "Died", (
        "No process of this machine holds its checkpoint, and its driver did not report its end: it was killed. "
        "Run it again; it continues from its checkpoint."
    )


def _is_lock_on(line: str, number: int) -> bool:
    """Return whether a line of /proc/locks is a whole-file lock, made by `flock`, on the file with this inode."""
    words = line.split()
    return len(words) > 5 and words[1] == "FLOCK" and words[5].rpartition(":")[2] == str(number)


# -- audits


def _audit(spec: SpecReport) -> Audit:
    """Return the findings of the last audit that ended; a stream leaves a file for each batch."""
    try:
        if spec.findings is not None and not _ADDRESS.match(spec.findings):
            file = Path(spec.findings).absolute()
            return _judged([file], at_ms=file.stat().st_mtime_ns // 1_000_000)
        if spec.stream and spec.checkpoint is not None and not _ADDRESS.match(spec.checkpoint):
            return _of_batches(Path(spec.checkpoint).absolute() / "findings")
    except FileNotFoundError as error:
        return unknown_audit(f"there is no {error.filename}: no audit has finished here yet")
    except (OSError, ValueError) as error:
        return unknown_audit(f"its findings cannot be read: {_reason(error)}")
    if spec.findings is None:
        return unknown_audit("its manifest does not set findings, so an audit writes none")
    return unknown_audit("its findings are in an object store, which the console does not read")


def _of_batches(folder: Path) -> Audit:
    names = sorted(name for name in os.listdir(folder) if name.endswith(".jsonl"))
    files = [folder / name for name in names[-_BATCHES_MAX:]]
    at_ms = files[-1].stat().st_mtime_ns // 1_000_000 if files else None
    return _judged(files, at_ms=at_ms, is_cut=len(files) < len(names))


def _judged(files: Sequence[Path], *, at_ms: int | None, is_cut: bool = False) -> Audit:
    findings: list[AuditFinding] = []
    count, left = 0, _FINDINGS_SIZE_MAX
    for file in files:
        size = file.stat().st_size
        if not size:
            continue
        with file.open("rb") as opened:
            lines = opened.read(left).splitlines()
        if size > left:
            lines, is_cut = lines[:-1], True
        count += len(lines)
        left = max(0, left - size)
        findings += [_finding(line) for line in lines[: FINDINGS_MAX - len(findings)]]
    # A part without findings proves nothing about the whole.
    state: AuditState = "broken" if count else "unknown" if is_cut else "kept"
    return Audit(
        state=state,
        at_ms=at_ms,
        count=Figure(value=count, at_least=is_cut),
        findings=tuple(findings),
    )


def _finding(line: bytes) -> AuditFinding:
    facts = json.loads(line)
    if not isinstance(facts, dict) or not isinstance(facts.get("offset"), int):
        raise ValueError("a line is not a finding")
    return AuditFinding(
        offset=facts["offset"],
        **{
            name: shortened(facts.get(name))
            for name in ("queue", "defect", "key", "expected", "got")
        },
    )


def _text(file: Path, size_max: int) -> str:
    with file.open("rb") as opened:
        content = opened.read(size_max + 1)
    if len(content) > size_max:
        raise ValueError(f"it has more than {size_max} bytes")
    return content.decode()


def _reason(error: Exception) -> str:
    text = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
    return shortened(" ".join(text.split()))
