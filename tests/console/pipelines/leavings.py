"""Manifests of pipelines and the files of their runs, as `orderlymq_spark` writes them (tests/spark/test_console.py)."""

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

#: Offsets of two queues, and the rest of a status.
OFFSETS = {"orders": {"broker-a": {"0": 5, "1": 7}}}
STATUS = {
    "name": "orders-archive",
    "type": "archive",
    "phase": "Running",
    "last_batch": 3,
    "rows": 12,
    "rows_per_second": 4.5,
    "offsets": OFFSETS,
    "lag": 2,
    "updated_at_ms": 1_790_000_000_000,
    "last_error": None,
    "batches": 4,
}
BREAK = {
    "queue": "orders/broker-a:0",
    "offset": 4,
    "defect": "skipped",
    "key": "order-3",
    "expected": 2,
    "got": 3,
}


def manifest(folder: Path, name: str, **spec: Any) -> Path:
    """Write a pipeline's manifest: by default an archive into and beside *folder*; *spec* changes that."""
    checkpoint = str(folder / f"{name}.checkpoint")
    wanted = {
        "type": "archive",
        "source": {"topic": "orders"},
        "checkpoint": checkpoint,
        "path": str(folder / "archive"),
        **spec,
    }
    made = {
        "apiVersion": "orderlymq.io/v1alpha1",
        "kind": "Pipeline",
        "metadata": {"name": name},
        "spec": {key: value for key, value in wanted.items() if value is not None},
    }
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(made))
    return file


def status(folder: Path, name: str, **facts: Any) -> Path:
    """Write the status of a `manifest` pipeline's driver; return its checkpoint."""
    checkpoint = folder / f"{name}.checkpoint"
    checkpoint.mkdir(exist_ok=True)
    (checkpoint / "driver.lock").touch()
    (checkpoint / "status.json").write_text(json.dumps({**STATUS, "name": name, **facts}))
    return checkpoint


@contextmanager
def driver_on(checkpoint: Path) -> Iterator[None]:
    """Lock a checkpoint as a living driver does."""
    with (checkpoint / "driver.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
