"""
Places in an object store, through `obstore`: S3 and compatible stores, Google Cloud Storage and Azure Blob Storage.

`obstore` is the Python interface of Apache's object_store, which also reads and writes Delta tables here. It was
chosen because one option makes a put conditional in all three stores. pyarrow.fs has no conditional write, and fsspec
needs a separate library for each store. Rules: a request is retried within a time limit. If the answer to a
conditional put is lost, the object is read back to see whether the put has won. Credentials, region and endpoint come
from the variables that the tools of each store use (AWS_*, GOOGLE_*, AZURE_*), never from a manifest.
"""

import io
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any, ClassVar, Final

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import from_url

from orderlymq_spark.errors import StoreFailed
from orderlymq_spark.locations.location import Location

_PIECE_BYTES: Final = 8 << 20  # of an upload; S3 requires at least 5 MiB and allows 10,000 pieces
_PIECES_MAX: Final = 4  # in flight of one upload; a task has one upload per queue
_BLOCK_BYTES: Final = 1 << 20  # the least that a reader fetches
_ENDPOINTS: Final = (
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT",
    "AZURE_STORAGE_ENDPOINT",
)
# Conflicts between puts of one object by writers at the same time.
_CONFLICTS_MAX: Final = 20
_CONFLICT_PAUSE_S: Final = 0.5
# S3 deletes with a POST, which obstore does not repeat after a reset connection. If obstore itself has repeated
# the request, it took longer than this.
_RESET_S: Final = 5.0
_RESET_PAUSE_S: Final = 0.2
_REQUEST_MAX: Final = timedelta(seconds=30)
_RETRY: Final[Any] = {
    # The time is the limit, because the pauses are random, and ten of them may take only 1.5 s.
    "max_retries": 10_000,
    # Longer than a usual outage of a store, shorter than Spark waits for a task.
    "retry_timeout": timedelta(seconds=120),
    "backoff": {
        "init_backoff": timedelta(milliseconds=100),
        "max_backoff": timedelta(seconds=15),
        # A pause is random between the least and this factor times the previous
        # one; with a factor below e, pauses do not grow.
        "base": 4,
    },
}


@dataclass(frozen=True, slots=True)
class ObjectLocation(Location):
    """An object, or a prefix of object keys."""

    parallel: ClassVar[int] = 16
    scheme: str
    bucket: str
    key: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.key}"

    def __truediv__(self, name: str) -> "ObjectLocation":
        key = f"{self.key}/{name}" if self.key else name
        return ObjectLocation(self.scheme, self.bucket, key)

    @property
    def parent(self) -> "ObjectLocation":
        return ObjectLocation(self.scheme, self.bucket, self.key.rpartition("/")[0])

    @property
    def _store(self) -> Any:
        return store_of(self.scheme, self.bucket)

    def read_bytes(self) -> bytes:
        try:
            return bytes(obstore.get(self._store, self.key).bytes())
        except BaseError as error:
            raise self.failed("read", error) from error

    def write(self, content: str | bytes) -> None:
        try:
            obstore.put(self._store, self.key, _bytes(content))
        except BaseError as error:
            raise self.failed("write", error) from error

    def create(self, content: str | bytes) -> bool:
        for _ in range(_CONFLICTS_MAX):
            has_won = self._create_once(_bytes(content))
            if has_won is not None:
                return has_won
            time.sleep(_CONFLICT_PAUSE_S)
        raise StoreFailed(
            f"{self} could not be created, because other puts of it were running each time"
        )

    def _create_once(self, content: bytes) -> bool | None:
        """Put the object if it is absent; return whether it now has this content, or None if it is still absent."""
        try:
            obstore.put(self._store, self.key, content, mode="create")
        except AlreadyExistsError:
            # S3 also reports this for a concurrent put, and that put may have failed.
            try:
                return self.read_bytes() == content
            except FileNotFoundError:
                return None
        except BaseError as error:
            # The put may have won and only its answer was lost.
            try:
                return self.read_bytes() == content
            except FileNotFoundError:
                raise self.failed("create", error) from error
        return True

    def exists(self) -> bool:
        try:
            self.size()
        except FileNotFoundError:
            return False
        return True

    def size(self) -> int:
        try:
            return int(obstore.head(self._store, self.key)["size"])
        except BaseError as error:
            raise self.failed("look for", error) from error

    def delete(self) -> None:
        end = time.monotonic() + _RESET_S
        while True:
            try:
                obstore.delete(self._store, self.key)
            except FileNotFoundError:
                return
            except BaseError as error:
                if time.monotonic() > end:
                    raise self.failed("delete", error) from error
                time.sleep(_RESET_PAUSE_S)
            else:
                return

    def prune(self) -> None:
        pass

    def move(self, target: "ObjectLocation") -> None:
        try:
            obstore.copy(self._store, self.key, target.key)
        except FileNotFoundError:
            return
        except BaseError as error:
            # S3 copies at most 5 GiB in a request, and a copy that exceeds the request's time limit also fails.
            self._carry(target, self.failed("copy", error))
        else:
            # A copy with status 200 may still contain an error.
            with suppress(FileNotFoundError):
                if not target.exists() or target.size() != self.size():
                    self._carry(target, StoreFailed(f"{self} was only partly copied: {target}"))
        self.delete()

    def _carry(self, target: "ObjectLocation", refused: StoreFailed) -> None:
        """Read the object and write it to its new place; do nothing if it is absent."""
        # Do not discard on failure, because that would remove an object that another writer has put there.
        upload = target.begin().target
        try:
            source = self.open()
            while piece := source.read(_PIECE_BYTES):
                upload.write(piece)
        except FileNotFoundError:
            return
        except (BaseError, OSError, StoreFailed) as error:
            if self.exists():
                raise refused from error
            return
        upload.finish()

    def names(self) -> list[str]:
        try:
            found = obstore.list_with_delimiter(self._store, self.key or None)
        except BaseError as error:
            raise self.failed("list", error) from error
        paths = [*(each["path"] for each in found["objects"]), *found["common_prefixes"]]
        return sorted(path.rpartition("/")[2] for path in paths)

    def files(self) -> Iterator[tuple[str, int]]:
        try:
            for page in obstore.list(self._store, self.key or None):
                for each in page:
                    yield each["path"].removeprefix(f"{self.key}/"), each["size"]
        except BaseError as error:
            raise self.failed("list", error) from error

    def open(self) -> "Download":
        try:
            return Download(obstore.open_reader(self._store, self.key, buffer_size=_BLOCK_BYTES))
        except BaseError as error:
            raise self.failed("read", error) from error

    def begin(self) -> "ObjectOutput":
        writer = obstore.open_writer(
            self._store, self.key, buffer_size=_PIECE_BYTES, max_concurrency=_PIECES_MAX
        )
        return ObjectOutput(self, Upload(self, writer))

    def failed(self, what: str, error: Exception) -> StoreFailed:
        """Return the error that names the operation that failed."""
        reason = str(error).partition("\n\nDebug source")[0]
        return StoreFailed(f"the object store did not {what} {self}: {reason}")


@cache
def store_of(scheme: str, bucket: str) -> Any:
    """Return the client of a bucket; each process has one per bucket."""
    return from_url(
        f"{scheme}://{bucket}",
        client_options={"allow_http": is_plain_http(), "timeout": _REQUEST_MAX},
        retry_config=_RETRY,
    )


def is_plain_http() -> bool:
    """Return whether the endpoint in the environment has no TLS."""
    endpoint = next((os.environ[name] for name in _ENDPOINTS if name in os.environ), "")
    return endpoint.startswith("http://")


def _bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content


class Upload(io.RawIOBase):
    """A file object through which Arrow writes an object; it is invisible until `finish`, and stays so after `drop`."""

    def __init__(self, place: ObjectLocation, writer: Any) -> None:
        self._place = place
        self._writer = writer
        self._count = 0

    def writable(self) -> bool:
        """Return true."""
        return True

    def write(self, content: Any) -> int:
        """Send content in pieces.

        Raises:
            StoreFailed: The store refused it; nothing is visible.
        """
        count = memoryview(content).nbytes
        try:
            self._writer.write(content)
        except (BaseError, OSError) as error:
            raise self._place.failed("take", error) from error
        self._count += count
        return count

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self._count

    def finish(self) -> int:
        """Make the object visible; return its bytes; raises the errors of `write`."""
        try:
            self._writer.close()
        except (BaseError, OSError) as error:
            raise self._place.failed("take", error) from error
        return self._count

    def drop(self) -> None:
        """Abandon the object; the bucket's rule for unfinished uploads removes the sent pieces of a large one."""
        self._writer = None


@dataclass(frozen=True, slots=True)
class ObjectOutput:
    """An upload in progress."""

    place: ObjectLocation
    target: Upload

    def close(self) -> int:
        """Finish the upload; raises the errors of `Upload.write`."""
        return self.target.finish()

    def discard(self) -> None:
        """Abandon the upload."""
        self.target.drop()
        # It may have finished before another file of the task failed. If the
        # store is unavailable, it stays without a name.
        with suppress(StoreFailed):
            self.place.delete()


class Download(io.RawIOBase):
    """A file object through which Arrow reads an object."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    def readable(self) -> bool:
        """Return true."""
        return True

    def seekable(self) -> bool:
        """Return true."""
        return True

    def read(self, size: int | None = -1) -> bytes:
        """Return the next bytes."""
        whole = size is None or size < 0
        return bytes(self._reader.read() if whole else self._reader.read(size))

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move to an offset; return the new position."""
        return int(self._reader.seek(offset, whence))

    def tell(self) -> int:
        """Return the position."""
        return int(self._reader.tell())
