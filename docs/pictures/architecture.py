"""
The picture of the architecture, drawn as SVG: `python docs/pictures/architecture.py` writes architecture.svg.

It has colours of its own for light and for dark pages, and no font from elsewhere.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

PICTURE: Final = Path(__file__).with_suffix(".svg")
WIDTH, HEIGHT = 980, 470

STYLE: Final = """\
.page { fill: #ffffff; stroke: #d5d9e0; }
.area { fill: #f4f6fb; stroke: #c3cadb; }
.box { fill: #ffffff; stroke: #6b7a99; }
.lead { fill: #e6edff; stroke: #3f5fc4; stroke-width: 2; }
text { font-family: system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1d2433; font-size: 13px; }
.name { font-weight: 600; font-size: 15px; }
.small { font-size: 12px; fill: #4a556b; }
.line { stroke: #4a556b; stroke-width: 1.6; fill: none; }
.soft { stroke-dasharray: 5 4; }
.head { fill: #4a556b; }
.a { fill: #3f5fc4; } .b { fill: #c2570c; } .c { fill: #16794c; }
.key { fill: #ffffff; font-size: 11px; font-weight: 600; }
@media (prefers-color-scheme: dark) {
  .page { fill: #161b26; stroke: #343d50; }
  .area { fill: #1e2534; stroke: #3b4760; }
  .box { fill: #252e40; stroke: #7f8db0; }
  .lead { fill: #26376b; stroke: #8fa8ff; }
  text { fill: #e8ecf5; }
  .small { fill: #b4bdd0; }
  .line { stroke: #a5b0c8; }
  .head { fill: #a5b0c8; }
}
"""


def box(kind: str, x: int, y: int, width: int, height: int) -> str:
    """Return a rounded rectangle of a class of the style, in pixels."""
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="8"/>'


def text(x: int, y: int, words: str, kind: str = "", anchor: str = "middle") -> str:
    """Return a line of text at its base line."""
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{words}</text>'


def arrow(points: str, kind: str = "", *, both: bool = False) -> str:
    """Return a line through *points* that ends in an arrow head, or begins in one as well."""
    start = ' marker-start="url(#arrow)"' if both else ""
    return f'<polyline class="line {kind}" points="{points}" marker-end="url(#arrow)"{start}/>'


def labelled(kind: str, x: int, y: int, width: int, lines: Sequence[str]) -> list[str]:
    """Return a box whose first line is its name."""
    middle = x + width // 2
    parts = [box(kind, x, y, width, 26 + 19 * len(lines)), text(middle, y + 26, lines[0], "name")]
    return parts + [
        text(middle, y + 28 + 19 * number, line, "small")
        for number, line in enumerate(lines)
        if number
    ]


def queue(x: int, y: int, name: str, keys: str) -> list[str]:
    """Return a queue with messages, one letter and colour per key, oldest on the right."""
    parts = [text(x, y + 15, name, "small", "start")]
    for number, key in enumerate(keys):
        left = x + 60 + 26 * number
        parts.append(f'<rect class="{key}" x="{left}" y="{y}" width="22" height="20" rx="4"/>')
        parts.append(text(left + 11, y + 14, key.upper(), "key"))
    return parts


def clients() -> list[str]:
    """Return producers and consumers with their arrows, the left column."""
    producers = ["Producers", "RocketMQ clients, Python SDK", "one key, one queue"]
    consumers = ["Consumers", "RocketMQ clients, Python SDK", "one lock holder per queue"]
    return [
        *labelled("box", 24, 146, 214, producers),
        *labelled("box", 24, 250, 214, consumers),
        arrow("238,190 318,190"),
        text(278, 182, "send", "small"),
        arrow("238,284 318,284", both=True),
        text(278, 276, "pull, commit", "small"),
        arrow("131,146 131,93 318,93", "soft", both=True),
        text(200, 84, "where are the brokers?", "small"),
    ]


def cluster() -> list[str]:
    """Return name servers and one broker group, the middle."""
    return [
        box("area", 300, 44, 392, 404),
        text(496, 34, "Cluster", "name"),
        *labelled(
            "box", 320, 60, 352, ["Name servers", "routes; they keep an ordered topic's queue list"]
        ),
        box("lead", 320, 146, 352, 158),
        text(496, 170, "Leader of a broker group", "name"),
        *queue(346, 182, "queue 0", "abab"),
        *queue(346, 208, "queue 1", "cccc"),
        text(542, 196, "one log holds", "small", "start"),
        text(542, 213, "messages, locks,", "small", "start"),
        text(542, 230, "offsets, retries", "small", "start"),
        text(496, 258, "acknowledges a send when a majority", "small"),
        text(496, 275, "has it on disk", "small"),
        text(496, 294, "RocksDB", "small"),
        *labelled("box", 320, 366, 166, ["Follower", "RocksDB"]),
        *labelled("box", 506, 366, 166, ["Follower", "RocksDB"]),
        arrow("403,304 403,366"),
        arrow("589,304 589,366"),
        text(496, 340, "raft", "small"),
        arrow("640,146 640,123", "soft"),
        text(604, 139, "register", "small"),
    ]


def control() -> list[str]:
    """Return operator and pipelines, the right column."""
    manifests = ["Manifests", "Cluster, Topic, User,", "ConsumerGroup, Pipeline"]
    operator = ["Operator", "on Kubernetes; on a laptop", "orderlymq up"]
    pipelines = ["Spark pipelines", "archive, order audit,", "change data capture, replay"]
    return [
        *labelled("box", 752, 44, 204, manifests),
        *labelled("box", 752, 190, 204, operator),
        *labelled("box", 752, 350, 204, pipelines),
        arrow("854,127 854,190"),
        arrow("752,232 672,232"),
        text(722, 224, "reconcile", "small"),
        arrow("672,290 712,290 712,392 752,392"),
        text(732, 412, "read", "small"),
    ]


def draw() -> str:
    """Return the picture."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'aria-label="Producers and consumers talk to the leader of a broker group, which replicates one log">'
    )
    marker = (
        '<defs><marker id="arrow" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        'orient="auto-start-reverse"><path class="head" d="M 0 0 L 10 5 L 0 10 z"/></marker></defs>'
    )
    page = f'<rect class="page" x="1" y="1" width="{WIDTH - 2}" height="{HEIGHT - 2}" rx="10"/>'
    parts = [head, f"<style>\n{STYLE}</style>", marker, page, *cluster(), *clients(), *control()]
    return "\n".join([*parts, "</svg>\n"])


if __name__ == "__main__":
    PICTURE.write_text(draw())
