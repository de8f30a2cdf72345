"""Errors of backups, named by the caller's next step."""


class BackupError(Exception):
    """A backup cannot be made, read or restored; the text says what to do."""


class BackupNotFound(BackupError):  # noqa: N818 - named for what the caller must know
    """There is no such backup; look at `orderlymq backup list`."""


class BackupNotNamed(BackupError):  # noqa: N818 - named for what the caller must know
    """The newest one may be another cluster's, or another one for the next replica; name the id."""


class BackupDamaged(BackupError):  # noqa: N818 - named for what the caller must know
    """The data that was read differs from the written data; use another backup."""


class FileDamaged(BackupDamaged):
    """The bytes of a file are missing, or not those that its digest names."""


class GroupsDiffer(BackupError):  # noqa: N818 - named for what the caller must know
    """The broker groups that were found are not the expected ones; bring them back, or say which there are."""


class PlaceBusy(BackupError):  # noqa: N818 - named for what the caller must know
    """Another program makes or deletes backups there; try again when it has ended."""


class TargetRefused(BackupError):  # noqa: N818 - named for what the caller must know
    """The place to restore to is in use, or does not fit; nothing was changed there."""


class StorageFailed(BackupError):  # noqa: N818 - named for what the caller must know
    """The folder or the object store refuses or does not answer; try again when that is cured."""
