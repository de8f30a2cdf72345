"""
Records the demo: `python docs/pictures/demo.py` runs `orderlymq up --demo` and writes what it said to demo.svg.

The ports of examples/quickstart.yaml must be free. The run takes half a minute; the cluster is stopped at its end.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT: Final = Path(__file__).parents[2]
PICTURE: Final = Path(__file__).with_suffix(".svg")
COMMAND: Final = "orderlymq up -f examples/quickstart.yaml --demo"
LAST: Final = "The cluster stays up"
WIDTH: Final = 86

THEME: Final = TerminalTheme(
    background=(22, 27, 38),
    foreground=(226, 230, 240),
    normal=[(22, 27, 38), (255, 120, 110), (126, 211, 146), (240, 200, 110), (140, 170, 255),
            (200, 150, 240), (120, 210, 220), (226, 230, 240)],
)  # fmt: skip
# rich's own form without its fonts from another host and without the buttons of a window.
FORM: Final = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img" \
aria-label="Output of the order demo">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; \
font-size: {char_height}px; line-height: {line_height}px; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}
</defs>
<rect fill="#161b26" stroke="#343d50" x="1" y="1" width="99.8%" height="99.8%" rx="10"/>
<g transform="translate(16, 12)" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def record(folder: str) -> Iterator[str]:
    """Yield the lines of the demo until its verdict stands, then stop the cluster."""
    command = [*COMMAND.split()[1:], "--data-dir", f"{folder}/.orderlymq"]
    process = subprocess.Popen(
        [Path(sys.executable).with_name("orderlymq"), *command],
        cwd=ROOT,
        env=os.environ | {"PYTHONUNBUFFERED": "1", "COLUMNS": str(WIDTH)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            yield line.rstrip().replace(f"{folder}/", "")
            if line.startswith(LAST):
                return
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def coloured(line: str) -> Text:
    """Return a line with a colour where the eye should stop."""
    if "SIGKILL" in line:
        return Text(line, "bold red")
    if "order kept" in line or "everything is consumed" in line:
        return Text(line, "bold green")
    if line.startswith("  ") and " s  " not in line:
        return Text(line, "blue")
    return Text(line)


def draw(lines: list[str]) -> str:
    """Return the terminal with *lines* as SVG."""
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere, force_terminal=True)
        console.print(Text(f"$ {COMMAND}", "bold"))
        for line in lines:
            console.print(coloured(line))
    return console.export_svg(title="", theme=THEME, code_format=FORM, unique_id="demo")


def main() -> None:
    """Run the demo and write the picture."""
    with tempfile.TemporaryDirectory() as folder:
        lines = list(record(folder))
    if not lines[-1].startswith(LAST):
        raise SystemExit("the demo ended early:\n" + "\n".join(lines))
    PICTURE.write_text(draw(lines))


if __name__ == "__main__":
    main()
