"""
Files that hold one secret: its bytes without white space around them, or an error that says what to write.

Rule: a secret that could be guessed is refused, and so is a file that is too long to be a secret.
"""

from pathlib import Path


def read_secret(
    path: Path, setting: str, sizes: range, error: type[ValueError], cure: str
) -> bytes:
    """Return the secret in *path*, which *setting* names.

    Raises:
        ValueError: an *error*; the file cannot be read, or the secret's size is not in *sizes*.
    """
    try:
        secret = path.read_bytes().strip()
    except OSError as failed:
        raise error(f"{setting} {path}: {failed.strerror}; {cure}") from failed
    if len(secret) not in sizes:
        raise error(
            f"{setting} {path}: it holds {len(secret)} bytes, not {sizes[0]} to {sizes[-1]}; {cure}"
        )
    return secret
