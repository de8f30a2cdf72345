"""Every decoder with its seeds, bytes near them and what fuzzers found; the engine itself runs in `make fuzz`."""

import random
from pathlib import Path
from typing import Final

import pytest

from tests.fuzz.decoders import SIZE_MAX, decoders

#: Inputs that once broke a law, `DECODER/name`; each is small. None has been found yet.
CORPUS: Final = Path(__file__).parent / "corpus"
_NEAR: Final = 150


@pytest.mark.parametrize("name", sorted(decoders()))
def test_a_decoder_reads_its_seeds_and_raises_only_its_own_errors_for_bytes_near_them(
    name: str,
) -> None:
    """Law: whatever the bytes, a decoder returns or raises one of its named errors."""
    decoder = decoders()[name]
    rng = random.Random(name)

    assert any(decoder.survives(seed) for seed in decoder.seeds), "no seed means anything"
    for seed in (*decoder.seeds, *_found_by_fuzzers(name)):
        decoder.survives(seed)
        for _ in range(max(1, _NEAR // len(decoder.seeds))):
            decoder.survives(_near(rng, seed[:SIZE_MAX]))


def _found_by_fuzzers(name: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((CORPUS / name.replace(" ", "-")).glob("*"))]


def _near(rng: random.Random, seed: bytes) -> bytes:
    found = bytearray(seed)
    for _ in range(rng.choice((1, 2, 8))):
        match rng.randrange(4):
            case 0 if found:
                found[rng.randrange(len(found))] = rng.randrange(256)
            case 1:
                del found[rng.randrange(len(found) + 1) :]
            case 2 if len(found) > 4:
                at = rng.randrange(len(found) - 3)
                found[at : at + 4] = rng.choice((b"\xff" * 4, b"\x7f\xff\xff\xff", bytes(4)))
            case _:
                at = rng.randrange(len(found) + 1)
                found[at:at] = found[at : at + 16]
    return bytes(found)
