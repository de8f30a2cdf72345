"""
The record of a broker group's certificates in an annotation of StatefulSets and pods; and the steps between TLS modes.

Pure. Rules: the annotation holds no secret. Brokers may write annotations of their own pods, so a text that does not
have exactly the right form counts as no record. A broker group goes from plain to enforced connections, or back,
through the permissive mode. It takes a step only after every pod has taken the previous one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final, Literal, Self

import msgspec

from orderlymq_operator.kube.certificates.schedule import CertificateSet

Mode = Literal["permissive", "enforcing"]
_Number = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
_LADDER: Final[tuple[Mode | None, ...]] = (None, "permissive", "enforcing")
# A record has about 200 characters.
_TEXT_MAX: Final = 1024


class _Form(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mode: Mode
    number: _Number
    signer: _Number
    trusts: Annotated[list[_Number], msgspec.Meta(min_length=1, max_length=8)]
    begins: Annotated[datetime, msgspec.Meta(tz=True)]
    ends: Annotated[datetime, msgspec.Meta(tz=True)]


@dataclass(frozen=True, slots=True)
class Issued:
    """A set of certificates, and whether plain connections are permitted in addition to TLS."""

    mode: Mode
    made: CertificateSet

    def text(self) -> str:
        """Return the text of the annotation; equal records have equal texts."""
        made = self.made
        form = _Form(
            self.mode, made.number, made.signer, sorted(made.trusts), made.begins, made.ends
        )
        return msgspec.json.encode(form).decode()

    @classmethod
    def parsed(cls, text: str | None) -> Self | None:
        """Return the record in an annotation; None if the text is empty, too long or not a valid record."""
        if not text or len(text) > _TEXT_MAX:
            return None
        try:
            form = msgspec.json.decode(text, type=_Form)
        except (msgspec.MsgspecError, ValueError):
            return None
        trusts = frozenset(form.trusts)
        made = CertificateSet(form.number, form.signer, trusts, form.begins, form.ends)
        return cls(form.mode, made)


def next_mode(target: Mode | None, now: Mode | None, pods: Sequence[Mode | None]) -> Mode | None:
    """Return the mode with which the next pods of a broker group start: at most one step from that of all running pods.

    Args:
        target: the desired mode.
        now: the mode in the StatefulSet.
        pods: the modes with which the pods were made.
    """
    if any(mode != now for mode in pods):
        return now
    here, there = _LADDER.index(now), _LADDER.index(target)
    return _LADDER[here + (there > here) - (there < here)]
