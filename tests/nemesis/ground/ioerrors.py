"""I/O errors for one replica: a small library between its store and the kernel, and a file that switches it."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_SOURCE: Final = Path(__file__).with_name("ioerrors.c")


@dataclass(frozen=True, slots=True)
class IoErrors:
    """Writes and syncs below *data_dir* fail with EIO while the switch is on."""

    library: Path
    switch: Path
    data_dir: Path

    def environment(self) -> dict[str, str]:
        """Return the environment that the replica's process must be started with."""
        return {
            "LD_PRELOAD": str(self.library),
            "NEMESIS_IO_ERRORS": str(self.switch),
            "NEMESIS_IO_DIR": str(self.data_dir),
        }

    def begin(self) -> None:
        """Make every write and sync fail."""
        self.switch.touch()

    def end(self) -> None:
        """Make them succeed again."""
        self.switch.unlink(missing_ok=True)


def build(directory: Path) -> Path | None:
    """Compile the library and return it; return None without a C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    library = directory / "ioerrors.so"
    words = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(_SOURCE), "-ldl"]
    done = subprocess.run(words, capture_output=True, check=False)
    return library if done.returncode == 0 else None
