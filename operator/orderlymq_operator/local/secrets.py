"""Read the secret of a User where its manifest says that it stands; on one machine: a file or the environment."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from orderlymq_operator.resources.user import User, fingerprint

SECRET_LENGTH_MIN: Final = 6  # RocketMQ's


def read_secret(user: User) -> str | None:
    """Return the secret, None when there is none or it is too short to be one."""
    source = user.spec.secret_from
    text = ""
    if source is None:
        return None  # only Kubernetes has a place for one that is made
    if source.file is not None:
        try:
            text = Path(source.file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return None
    elif source.env is not None:
        text = os.environ.get(source.env, "")
    text = text.strip()
    return text if len(text) >= SECRET_LENGTH_MIN else None


def fingerprints(users: Iterable[User]) -> dict[str, str | None]:
    """Return the fingerprint of each User's secret by its name; None where it cannot be read."""
    secrets = [(user, read_secret(user)) for user in users]
    return {
        user.metadata.name: None if secret is None else fingerprint(user.access_key, secret)
        for user, secret in secrets
    }
