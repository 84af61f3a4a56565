"""The documents: every link leads to a file that is there, and to a heading that is in it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/**/*.md")])


def anchors(page: Path) -> set[str]:
    """What a link can point at, as the forges make it of headings."""
    headings = re.findall(r"(?m)^#+ (.*)$", page.read_text())
    return {re.sub(r"[^\w\- ]", "", heading.replace("`", "").strip().lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Those within the repository; what is on the web is not asked."""
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if link.startswith("http"):
            continue
        file, _, heading = link.partition("#")
        to = page.parent / file if file else page
        assert to.exists(), link
        assert not heading or to.suffix != ".md" or heading in anchors(to), link
