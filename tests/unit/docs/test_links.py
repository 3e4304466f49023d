"""All links in Markdown files have targets: files, headings, and files named in the text."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[3]
BUILT = {".venv", "build", "node_modules", "shared"}
PAGES = sorted(
    path
    for path in ROOT.rglob("*.md")
    if not any(part in BUILT or part.startswith(".") for part in path.relative_to(ROOT).parts)
)
FOLDERS = sorted(path.name for path in ROOT.iterdir() if path.is_dir() and path.name not in BUILT)
CODE = re.compile(r"^```.*?^```|^    .*?$|`[^`\n]+`", re.M | re.S)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)(?: \"[^\"]*\")?\)")
NAMED = re.compile(rf"`((?:{'|'.join(map(re.escape, FOLDERS))})/[A-Za-z0-9_./-]+)`")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@cache
def anchors(page: Path) -> set[str]:
    """Anchors of the headings, as GitHub generates them."""
    headings = re.findall(r"^#+ +(.+?) *#*$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S), re.M)
    found: dict[str, int] = {}
    for heading in headings:
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        found[slug] = found.get(slug, -1) + 1
        if found[slug]:
            found[f"{slug}-{found[slug]}"] = 0
    return set(found)


def trouble(page: Path, target: str) -> str:
    """The error of a link in ``page``, or ""."""
    parts = urlsplit(target)
    if parts.scheme:
        host = re.fullmatch(r"[a-z0-9-]+(\.[a-z0-9-]+)+(:[0-9]+)?", parts.netloc)
        return "" if parts.scheme in ("https", "http") and host else "no address of the web"
    file = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if not file.exists() or not file.is_relative_to(ROOT):
        return "no such file"
    if parts.fragment and parts.fragment not in anchors(file):
        return f"no such heading in {name(file)}"
    return ""


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_have_existing_targets(page: Path) -> None:
    found = {target: trouble(page, target) for target in LINK.findall(CODE.sub("", page.read_text()))}
    assert {target: wrong for target, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_named_files_exist(page: Path) -> None:
    """Also by a prefix of the name, such as docs/decisions/0008."""
    named = set(NAMED.findall(page.read_text()))
    assert sorted(path for path in named if not any(ROOT.glob(f"{path.rstrip('/')}*")) and "build/" not in path) == []


def test_broken_links_are_found() -> None:
    page = ROOT / "README.md"
    assert trouble(page, "docs/glossary.md#glossary") == trouble(page, "https://slurm.schedmd.com/x.html#y") == ""
    assert trouble(page, "docs/glossary.md#gone") == "no such heading in docs/glossary.md"
    assert trouble(page, "docs/gone.md") == trouble(page, "../../etc/passwd") == "no such file"
    assert trouble(page, "ftp://a.b") == trouble(page, "https://localhost-only") == "no address of the web"
    assert len(PAGES) > 20
