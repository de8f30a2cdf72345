"""Errors of backups, named for what the caller does next."""


class BackupError(Exception):
    """A backup cannot be made, read or restored; the text says what to do."""


class BackupNotFound(BackupError):  # noqa: N818 - named for what the caller must know
    """There is no such backup; see `orderlymq backup list`."""


class BackupNotNamed(BackupError):  # noqa: N818 - named for what the caller must know
    """The newest backup may be another cluster's, or may be a different one for the next replica; give the id."""


class BackupDamaged(BackupError):  # noqa: N818 - named for what the caller must know
    """The data read differs from the data written; use another backup."""


class FileDamaged(BackupDamaged):
    """The bytes of a file are missing or do not match its digest."""


class GroupsDiffer(BackupError):  # noqa: N818 - named for what the caller must know
    """The broker groups found are not the expected ones; start the missing ones, or name the existing ones."""


class PlaceBusy(BackupError):  # noqa: N818 - named for what the caller must know
    """Another program makes or deletes backups in the same place; try again when it is complete."""


class TargetRefused(BackupError):  # noqa: N818 - named for what the caller must know
    """The restore target is in use or unsuitable; nothing was changed there."""


class StorageFailed(BackupError):  # noqa: N818 - named for what the caller must know
    """The folder or object store returns an error or does not answer; try again when that is fixed."""
