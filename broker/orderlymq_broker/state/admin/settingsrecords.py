"""Records of the raft log about settings of the running group, by the rules of ``records.py``."""

from msgspec import Struct


class SettingsSet(Struct, frozen=True, array_like=True, tag=95):
    """An administrator changed settings of the running broker group.

    Attributes:
        values: by RocketMQ's name: the new value, and the manifest's value that it replaces. If a replica's
            manifest has another value by then, the replica uses its manifest, which is newer.
    """

    values: dict[str, tuple[str, str]]


class SettingsChanged(Struct, frozen=True):
    """The settings of the running broker group changed; *changed* is False if the record made no difference."""

    changed: bool
