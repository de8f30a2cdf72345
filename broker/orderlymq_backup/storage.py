"""
The places where backups are kept: a folder of this machine, or a bucket of an S3-compatible store.

The rule: the file under a key is always complete. A folder gets a file by a rename after its bytes are on
disk; an object store shows an object when its upload has ended. ``manifest.py`` makes keys from digests and
ids, never from text that another program has written. Calls block; programs with an event loop make them in
threads.
"""

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlsplit

from orderlymq_backup.errors import BackupError, BackupNotFound, StorageFailed
from orderlymq_runtime.durablefiles import sync_path

if TYPE_CHECKING:
    from obstore.store import S3Store

# What a data directory of a local cluster or of a replica holds, and a place of backups does not.
_DATA: Final = ("cluster.json", "identity.json", "store")

# Without credentials of its own, a library asks this address of clouds for those of the machine.
_CREDENTIALS: Final = "169.254.169.254"
_CHUNK: Final = 1 << 20
# The environment variable that gives the folder's group access to stored files.
GROUP_ACCESS: Final = "ORDERLYMQ_BACKUP_GROUP_ACCESS"


class Storage(Protocol):
    """Files by key.

    Attributes:
        spool: folder in which files are prepared for `put`, so that a rename suffices; None for any.

    Every method raises StorageFailed if the place returns an error or does not answer.
    """

    spool: Path | None

    def put(self, key: str, path: Path) -> None:
        """Store the file at *path*, which may be moved, under *key*; it is durable when this returns."""

    def read(self, key: str) -> Iterator[bytes]:
        """Yield the bytes under *key* in pieces.

        Raises:
            KeyError: there is no such key.
        """

    def list(self, folder: str) -> Iterator[tuple[str, int]]:
        """Yield key and size of every file below *folder*."""

    def delete(self, key: str) -> None:
        """Remove the file under *key*, if it exists."""


class Folder:
    """A folder of this machine, or one that is mounted on it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.spool: Path | None = path / "incoming"

    def __str__(self) -> str:
        return str(self._path)

    def put(self, key: str, path: Path) -> None:
        """See `Storage`."""
        target = self._path / key
        try:
            make_folder(target.parent)
            mode = 0o660 if _shared() else 0o600
            # Stored files contain messages and secrets. Some file systems have no modes.
            with contextlib.suppress(PermissionError):
                path.chmod(mode)
            sync_path(path)
            if path.stat().st_dev == target.parent.stat().st_dev:
                path.replace(target)
            else:
                unfinished = target.with_name(f".{target.name}.{os.getpid()}")
                unfinished.touch(mode=mode)
                shutil.copyfile(path, unfinished)
                sync_path(unfinished)
                unfinished.replace(target)
            sync_path(target.parent)
            sync_path(target.parent.parent)
        except OSError as error:
            raise failed(self, error) from error

    def read(self, key: str) -> Iterator[bytes]:
        """See `Storage`."""
        try:
            with (self._path / key).open("rb") as file:
                while data := file.read(_CHUNK):
                    yield data
        except FileNotFoundError:
            raise KeyError(key) from None
        except OSError as error:
            raise failed(self, error) from error

    def list(self, folder: str) -> Iterator[tuple[str, int]]:
        """See `Storage`."""
        try:
            for path in sorted((self._path / folder).rglob("*")):
                try:
                    found = path.stat()
                except FileNotFoundError:
                    continue  # another program has removed it meanwhile
                if stat.S_ISREG(found.st_mode) and not path.name.startswith("."):
                    yield path.relative_to(self._path).as_posix(), found.st_size
        except OSError as error:
            raise failed(self, error) from error

    def delete(self, key: str) -> None:
        """See `Storage`."""
        try:
            (self._path / key).unlink(missing_ok=True)
        except OSError as error:
            raise failed(self, error) from error


class Bucket:
    """A bucket of S3 or of a store with the same protocol, below a prefix.

    Credentials, region and endpoint come from the environment variables that all tools of S3 use.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self.spool: Path | None = None
        self._errors: tuple[type[Exception], ...] = (OSError, ValueError)
        self._store = self._open(url)

    def __str__(self) -> str:
        return self._url

    def _open(self, url: str) -> "S3Store":
        try:
            from obstore.exceptions import BaseError  # noqa: PLC0415 - an extra
            from obstore.store import S3Store  # noqa: PLC0415 - the same
        except ImportError as error:
            raise BackupError(
                f"{url} needs a library for S3: install orderlymq-server[s3]"
            ) from error
        self._errors = (BaseError, OSError, ValueError)
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        options: Any = {"timeout": "60s", "allow_http": (endpoint or "").startswith("http://")}
        try:
            return S3Store.from_url(
                url, config={"endpoint": endpoint} if endpoint else {}, client_options=options
            )
        except self._errors as error:
            raise failed(self, error) from error

    def put(self, key: str, path: Path) -> None:
        """See `Storage`."""
        import obstore  # noqa: PLC0415 - an extra

        try:
            obstore.put(self._store, key, path)
        except self._errors as error:
            raise failed(self, error) from error

    def read(self, key: str) -> Iterator[bytes]:
        """See `Storage`."""
        import obstore  # noqa: PLC0415 - an extra

        try:
            for data in obstore.get(self._store, key).stream(min_chunk_size=_CHUNK):
                yield bytes(data)
        except FileNotFoundError:
            raise KeyError(key) from None
        except self._errors as error:
            raise failed(self, error) from error

    def list(self, folder: str) -> Iterator[tuple[str, int]]:
        """See `Storage`."""
        import obstore  # noqa: PLC0415 - an extra

        try:
            for page in obstore.list(self._store, prefix=folder):
                for each in page:
                    yield each["path"], each["size"]
        except self._errors as error:
            raise failed(self, error) from error

    def delete(self, key: str) -> None:
        """See `Storage`."""
        import obstore  # noqa: PLC0415 - an extra

        try:
            with contextlib.suppress(FileNotFoundError):
                obstore.delete(self._store, key)
        except self._errors as error:
            raise failed(self, error) from error


def make_folder(path: Path) -> None:
    """Make *path* and its missing parents, only for their owner or group; existing folders keep their mode."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)
        if _shared():
            # Set the mode regardless of the umask. The bit that passes the group on to new files stays.
            with contextlib.suppress(PermissionError):
                path.chmod(stat.S_IMODE(path.stat().st_mode) | 0o070)


def _shared() -> bool:
    return os.environ.get(GROUP_ACCESS) == "true"


def open_storage(url: str, *, exists: bool = False) -> Storage:
    """Return the folder or bucket that *url* names: a path, ``file:///PATH`` or ``s3://BUCKET/PREFIX``.

    *exists*: refuse a folder that does not exist, because the caller only looks for backups.

    Raises:
        BackupNotFound: the folder does not exist.
        BackupError: it is neither, or the library is missing.
    """
    parts = urlsplit(url)
    match parts.scheme:
        case "s3" if parts.netloc:
            return Bucket(url)
        case "file" if parts.path and not parts.netloc:
            return _folder(Path(parts.path), exists=exists)
        case "" if url:
            return _folder(Path(url), exists=exists)
        case _:
            raise BackupError(
                f"{url!r} is not a place for backups; name a folder, or s3://BUCKET/PREFIX"
            )


def _folder(path: Path, *, exists: bool) -> Folder:
    if exists and not path.exists():
        raise BackupNotFound(f"the folder {path} does not exist; name the place of the backups")
    if path.exists() and not path.is_dir():
        raise BackupError(f"{path} is a file; name a folder for backups")
    if not exists and any((path / name).exists() for name in _DATA):
        raise BackupError(f"{path} is a data directory; name a folder of its own for backups")
    return Folder(path)


def failed(place: object, error: Exception) -> StorageFailed:
    """Return this package's error for an error of the system or a library at *place*, whose text may not name it."""
    # A library for object stores adds pages about its own structures.
    text = " ".join(str(error).split("\n\nDebug source")[0].split())
    advice = ""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        advice = "; make room there"
    elif _CREDENTIALS in text:
        advice = "; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give this machine a role"
    return StorageFailed(f"{place}: {text}{advice}")
