"""A hook of mkdocs: what pages link to outside of docs/, as a committed report, becomes a file of
the site.

In the repository such a link is relative to the page (`../reports/prune/report.html`), and on the
site likewise. Of a report there is the page alone: links to its Markdown lead there too.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent.parent
LINK = re.compile(r"(?<=\]\()([^)#\s:]+)")


def target_of(link: str, page: str) -> str:
    """The path in the repository of what a page of the site links to."""
    place = PurePosixPath("docs", page) if (ROOT / "docs" / page).is_file() else PurePosixPath(page)
    target = PurePosixPath(normpath(place.parent / link))
    shown = target.with_suffix(".html")
    return str(shown if target.suffix == ".md" and (ROOT / shown).is_file() else target)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds every file outside of docs/ that a page links to, and what those that are pages link
    to.
    """
    unread = list(files.documentation_pages())
    while unread:
        page = unread.pop()
        targets = {target_of(link, page.src_uri) for link in LINK.findall(page.content_string)}
        for target in sorted(
            each for each in targets if not each.startswith("docs/") and (ROOT / each).is_file()
        ):
            if files.get_file_from_path(target) is None:
                added = File.generated(config, target, abs_src_path=str(ROOT / target))
                added.inclusion = InclusionLevel.NOT_IN_NAV
                files.append(added)
                unread += [added] if added.is_documentation_page() else []
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Its links, from the page's place on the site to that of their targets."""
    here = page.file.src_uri

    def moved(found: re.Match[str]) -> str:
        return relpath(target_of(found[1], here).removeprefix("docs/"), PurePosixPath(here).parent)

    return LINK.sub(moved, markdown)
