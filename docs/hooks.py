"""
What the site needs beyond mkdocs: the address of the repository, and links from pages to files outside of docs/.

A page links to a file as GitHub does, relative to itself. On the site such a link leads to the file in the repository.
Long names may be broken at their parts, and a picture opens in its full size. Search puts guides and reference first.
"""

import os.path
import re
import tomllib
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
_NAME: Final = re.compile(r"(<code>|<h[23] [^>]*>)([\w.\[\]-]{20,})(?=<)")
_PART: Final = re.compile(r"(?<=[.\]_])(?=\w)|(?<=[a-z])(?=[A-Z])")
_PICTURE: Final = re.compile(r'<p>(<img [^>]*src="([^"]+)"[^>]*>)</p>')
LINK: Final = re.compile(r"(\]\()((?:\.\./)+[^)#\s]*)([^)]*\))")


def repository() -> str:
    """Return the public address of the project, from `[project.urls]` of pyproject.toml."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        urls: dict[str, str] = tomllib.load(file)["project"]["urls"]
    return urls["Repository"]


def on_config(config: Any) -> Any:
    """Link the repository, and give every decision a place in the navigation."""
    # Not as repo_url: with that, each page of the theme asks GitHub for numbers of stars.
    config.extra["social"] = [{"icon": "fontawesome/brands/git-alt", "link": repository()}]
    pages = sorted((ROOT / "docs" / "adr").glob("0*.md"))
    (explanation,) = (entry["Explanation"] for entry in config.nav if "Explanation" in entry)
    (decisions,) = (entry["Decisions"] for entry in explanation if "Decisions" in entry)
    decisions += [f"adr/{page.name}" for page in pages]
    return config


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Point links that leave docs/ to the repository; rank decisions and evidence below what users look for."""
    if page.file.src_uri.startswith(("adr/", "evidence/")):
        page.meta["search"] = {"boost": 0.3}
    folder = os.path.dirname(f"docs/{page.file.src_uri}")
    address = repository()

    def leave(match: re.Match[str]) -> str:
        target = os.path.normpath(os.path.join(folder, match[2]))
        if target.startswith("docs/") and Path(target).suffix != ".py":
            return match[0]
        return f"{match[1]}{address}/blob/main/{target}{match[3]}"

    return LINK.sub(leave, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Let browsers break long names between their parts, and link each picture to its file."""
    html = _NAME.sub(lambda found: found[1] + _PART.sub("<wbr>", found[2]), html)
    return _PICTURE.sub(r'<p><a href="\2">\1</a></p>', html)
