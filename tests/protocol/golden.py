"""Frames captured from real clients, brokers and name servers, for the tests of the codecs."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_FILE = Path(__file__).parent / "data" / "golden-frames.jsonl"


@dataclass(frozen=True, slots=True)
class GoldenFrame:
    """One captured frame; `code` is the code of the request, also for a response."""

    line: int
    code: int
    kind: str
    server: str
    variant: str | None
    client_version: int | None
    header: bytes
    body: bytes

    @property
    def wire(self) -> bytes:
        total = 4 + len(self.header) + len(self.body)
        return (
            total.to_bytes(4, "big") + len(self.header).to_bytes(4, "big") + self.header + self.body
        )

    @property
    def fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = json.loads(self.header)
        return fields

    @property
    def is_request(self) -> bool:
        return self.kind == "request"


@cache
def frames() -> tuple[GoldenFrame, ...]:
    entries = [json.loads(line) for line in _FILE.read_text().splitlines()]
    return tuple(
        GoldenFrame(
            number,
            entry["request_code"],
            entry["kind"],
            entry["server"],
            entry.get("variant"),
            entry.get("client_version"),
            entry["header"].encode(),
            bytes.fromhex(entry["body_hex"]),
        )
        for number, entry in enumerate(entries, 1)
    )


def bodies(code: int, kind: str) -> list[bytes]:
    """Return the non-empty bodies of the requests or responses of a code."""
    return [f.body for f in frames() if f.code == code and f.kind == kind and f.body]
