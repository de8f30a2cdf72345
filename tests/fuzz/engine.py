"""
Runs one decoder after the other under atheris, which `make fuzz` installs; `tests.fuzz` handles the findings.

libFuzzer ends the process that it runs in. So each decoder has its own child of this process, which has already
imported and instrumented the sources.
"""

import os
import re
import sys
from pathlib import Path
from typing import Final

import atheris  # type: ignore[import-not-found, import-untyped, unused-ignore]  # only where `make fuzz` has put it

# The sources under test are imported inside, so that atheris counts their branches.
with atheris.instrument_imports(
    include=["orderlymq_protocol", "orderlymq_broker", "orderlymq_raft"]
):
    from tests.fuzz.decoders import SIZE_MAX, Decoder, decoders

__all__ = ["decoders", "fuzz"]

_MEMORY_MIB: Final = 1_024
# An input of a few KiB that takes longer would block an event loop for as long.
_INPUT_TIMEOUT_S: Final = 2
_ERROR: Final = re.compile(
    r"=== Uncaught Python exception: ===\n(.*)|(ERROR: libFuzzer: .*)|(ALARM: .*)"
)
_RUNS: Final = re.compile(r"number_of_executed_units: *(\d+)|^#(\d+)", re.M)


def fuzz(decoder: Decoder, place: Path, seconds: int, seed: int) -> tuple[str, str]:
    """Fuzz in a child; return how many inputs it read and what broke a law, empty if nothing did."""
    log = place / "log"
    child = os.fork()
    if not child:
        with log.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        _run(decoder, place, seconds, seed)
    _, status = os.waitpid(child, 0)
    text = log.read_text(errors="replace")
    runs = [each for match in _RUNS.findall(text) for each in match if each]
    errors = [each for match in _ERROR.findall(text) for each in match if each]
    if not status:
        return (runs[-1] if runs else "?"), ""
    return (runs[-1] if runs else "?"), errors[0] if errors else f"status {status}: {text[-200:]}"


def _run(decoder: Decoder, place: Path, seconds: int, seed: int) -> None:
    def read(data: bytes) -> None:
        decoder.survives(data)

    options = [
        *(f"-max_total_time={seconds}", f"-seed={seed}", f"-max_len={SIZE_MAX}"),
        *(f"-timeout={_INPUT_TIMEOUT_S}", f"-rss_limit_mb={_MEMORY_MIB}", "-print_final_stats=1"),
        *(f"-artifact_prefix={place / 'broken'}/", str(place / "corpus")),
    ]
    try:
        atheris.Setup([sys.argv[0], *options], read)
        atheris.Fuzz()
    finally:
        os._exit(1)
