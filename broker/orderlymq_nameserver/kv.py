"""
The key-value configuration: texts by namespace and key, set by administrators.

The only namespace with a meaning here is `ORDER_TOPIC_CONFIG`, which `routes` reads. Rule: a change of it is
in the file before it is answered with success, and a change that could not be saved did not happen. Every
client may change the other namespaces (`proofs`). They have a small limit of their own. Their changes can be
read immediately and are saved together, once a second and at the end. So no number of requests makes the
event loop wait for the disk.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from orderlymq_protocol.decodeerrors import UNREADABLE
from orderlymq_protocol.names import ORDER_NAMESPACE
from orderlymq_runtime.durablefiles import replace_file

# The limit of `ORDER_TOPIC_CONFIG`, in bytes. It has one queue list per ordered topic, written by administrators:
# ten thousand of them fit. Each change writes the whole file, and an answer must fit into a frame.
SIZE_MAX: Final = 2 << 20

# The limit of all other namespaces together: enough for hundreds of notes that administrators keep with mqadmin,
# and little compared to what unknown clients may use in a process (64 MiB). Each value also counts for its
# overhead, so that there cannot be many empty ones.
FOREIGN_BYTES_MAX: Final = 64 << 10
FOREIGN_ENTRY_BYTES: Final = 64

Tables = Mapping[str, Mapping[str, str]]


class KvError(Exception):
    """The configuration cannot be read, saved or made larger; the text says what to do."""


class KvTable:
    """The configuration in memory; *write* saves it, or raises `KvError`."""

    def __init__(
        self, tables: Tables | None = None, write: Callable[[Tables], None] = lambda _: None
    ) -> None:
        self._tables: dict[str, dict[str, str]] = {
            namespace: dict(table) for namespace, table in (tables or {}).items()
        }
        self._write = write
        self._has_unsaved = False
        # The bytes of the cluster's own namespace and of all others.
        self._own_bytes = self._foreign_bytes = 0
        for namespace, table in self._tables.items():
            for key, value in table.items():
                self._use(namespace, _bytes_of(namespace, key, value))

    def get(self, namespace: str, key: str) -> str | None:
        """Return one value, None if it is not set."""
        return self._tables.get(namespace, {}).get(key)

    def table(self, namespace: str) -> Mapping[str, str]:
        """Return a namespace, sorted by key; empty if nothing was set in it."""
        return dict(sorted(self._tables.get(namespace, {}).items()))

    def put(self, namespace: str, key: str, value: str) -> bool:
        """Set one value; return whether it changed.

        Raises:
            KvError: It could not be saved, or all values together are too large; nothing has changed.
        """
        present = self.get(namespace, key)
        if present == value:
            return False
        growth = _bytes_of(namespace, key, value)
        if present is not None:
            growth -= _bytes_of(namespace, key, present)
        used, limit = self._foreign_bytes, FOREIGN_BYTES_MAX
        if namespace == ORDER_NAMESPACE:
            used, limit = self._own_bytes, SIZE_MAX
        if growth > 0 and used + growth > limit:
            raise KvError(
                f"the configuration would have {used + growth} bytes, but {limit} are allowed; "
                "delete what is no longer needed"
            )
        self._change(namespace, {**self._tables.get(namespace, {}), key: value})
        self._use(namespace, growth)
        return True

    def delete(self, namespace: str, key: str) -> bool:
        """Delete one value; return whether it existed.

        Raises:
            KvError: The change could not be saved; nothing has changed.
        """
        table = dict(self._tables.get(namespace, {}))
        present = table.pop(key, None)
        if present is None:
            return False
        self._change(namespace, table)
        self._use(namespace, -_bytes_of(namespace, key, present))
        return True

    def save(self) -> None:
        """Save the changes in namespaces other than the cluster's own.

        Raises:
            KvError: They could not be saved; a later call tries again.
        """
        if self._has_unsaved:
            self._save(self._tables)

    def _change(self, namespace: str, table: dict[str, str]) -> None:
        tables = {**self._tables, namespace: table}
        if not table:
            del tables[namespace]
        if namespace == ORDER_NAMESPACE:
            self._save(tables)
        else:
            self._has_unsaved = True
        self._tables = tables

    def _save(self, tables: Tables) -> None:
        self._write(tables)
        self._has_unsaved = False

    def _use(self, namespace: str, size: int) -> None:
        if namespace == ORDER_NAMESPACE:
            self._own_bytes += size
        else:
            self._foreign_bytes += size


def _bytes_of(namespace: str, key: str, value: str) -> int:
    """Return the bytes that one value counts for.

    Raises:
        KvError: It cannot be written to a file.
    """
    try:
        size = len((namespace + key + value).encode())
    except UnicodeEncodeError as error:
        raise KvError(f"a namespace, key or value is not Unicode text: {error.reason}") from error
    return size if namespace == ORDER_NAMESPACE else size + FOREIGN_ENTRY_BYTES


class _FileContent(msgspec.Struct):
    """The layout of the file, as in RocketMQ's ``kvConfig.json``."""

    config_table: dict[str, dict[str, str]] = msgspec.field(
        name="configTable", default_factory=dict
    )


class KvFile:
    """The configuration in one JSON file, replaced as a whole."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> Tables:
        """Return the content of the file, empty if the file does not exist.

        Raises:
            KvError: The file exists and cannot be read; starting without it would lose its content.
        """
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise KvError(f"{self._path}: {error.strerror}") from error
        try:
            return msgspec.json.decode(data, type=_FileContent).config_table
        except UNREADABLE as error:
            raise KvError(
                f"{self._path} is not a key-value configuration ({error}): repair it, or move it "
                "away to start with an empty one"
            ) from error

    def save(self, tables: Tables) -> None:
        """Write a new file, sync it, and replace the old one."""
        content = _FileContent({name: dict(table) for name, table in tables.items()})
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            data = msgspec.json.format(msgspec.json.encode(content))
            replace_file(self._path, data, 0o666)
        except OSError as error:
            raise KvError(
                f"{self._path} cannot be written: {error.strerror}; free space on its disk or "
                "repair it"
            ) from error
