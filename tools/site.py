"""Build the documentation as a site that works offline: README.md, docs/ and the files that they link to.

The navigation is what docs/README.md lists, section by section, so a page that is not listed there has no place in it.
Links to programs lead to a page with their source. A link or an anchor that leads nowhere is an error.

The site loads nothing from other hosts. The theme would load a script that its search needs on a disk;
tools/site_worker.js takes its place.

``python -m tools.site`` writes dist/site; open dist/site/index.html.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tools.pages import ROOT

TITLE = "cantrip-actors"
INDEX = Path("docs/README.md")
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
SHOWN_AS_THEY_ARE = frozenset({".md", ".png", ".svg"})
LANGUAGES = {".py": "python", ".sh": "bash", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".js": "javascript"}

WORKER = Path(__file__).with_name("site_worker.js")
_SHIM = "https://unpkg.com/iframe-worker/shim"
_LOADED = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)=["']?((?:https?:)?//[^"'\s>]+)""")
_LINK = re.compile(r"(\]\()((?!https?:|mailto:|#)[^)#\s]+)")
_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,})(?P<language>\w+)(?P<options> [^`\n]*)$", re.MULTILINE)

SETTINGS: dict[str, Any] = {
    "site_name": TITLE,
    "use_directory_urls": False,
    "theme": {
        "variant": "modern",
        "font": False,
        "features": [
            "navigation.tabs",
            "navigation.top",
            "navigation.indexes",
            "content.code.copy",
            "search.highlight",
        ],
        "palette": [
            {
                "media": "(prefers-color-scheme: light)",
                "scheme": "default",
                "toggle": {"icon": "lucide/moon", "name": "Dark"},
            },
            {
                "media": "(prefers-color-scheme: dark)",
                "scheme": "slate",
                "toggle": {"icon": "lucide/sun", "name": "Light"},
            },
        ],
    },
    "plugins": ["search", "offline"],
    "markdown_extensions": [
        {"toc": {"permalink": True, "slugify": "!slugify"}},
        "tables",
        "sane_lists",
        "pymdownx.highlight",
        "pymdownx.superfences",
    ],
}
"""The settings of the site, without its folders and the navigation."""


def list_sections(index: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield the sections of docs/README.md with the titles and files of their pages."""
    for section in re.split("^## ", index, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        pages = re.findall(r"^\| \[([^\]]+)\]\(([^)#]+\.md)\)", body, re.MULTILINE)
        if pages:
            yield title, pages


def make_navigation(root: Path) -> list[Any]:
    """Return the navigation: the README, and each section of docs/README.md."""
    navigation: list[Any] = [{"Home": "README.md"}]
    for title, pages in list_sections((root / INDEX).read_text(encoding="utf-8")):
        entries: list[Any] = []
        for name, target in pages:
            path = (root / INDEX.parent / target).resolve().relative_to(root.resolve())
            if path.name == "README.md" and path.parent.name == "reference":
                modules = sorted(page.stem for page in (root / path.parent).glob("*.md") if page.name != "README.md")
                entries.append(
                    {name: [path.as_posix(), *(f"{path.parent.as_posix()}/{module}.md" for module in modules)]}
                )
            else:
                entries.append({name: path.as_posix()})
        navigation.append({title: [{"All pages": INDEX.as_posix()}, *entries] if title == "Start" else entries})
    return navigation


def find_unlisted(root: Path) -> list[str]:
    """Return the pages of docs/ that docs/README.md does not list."""
    listed = {target for _, pages in list_sections((root / INDEX).read_text(encoding="utf-8")) for _, target in pages}
    linked = set(re.findall(r"\]\(([^)#]+\.md)\)", (root / INDEX).read_text(encoding="utf-8")))
    return [
        page.name for page in sorted((root / "docs").glob("*.md")) if page.name not in {INDEX.name, *listed, *linked}
    ]


def copy_page(root: Path, page: Path, into: Path) -> None:
    """Copy a page, and what it links to that is no page: pictures as they are, programs as pages with their source."""

    def follow(match: re.Match[str]) -> str:
        target = (root / page.parent / match[2]).resolve().relative_to(root.resolve())
        if target.suffix in SHOWN_AS_THEY_ARE or not (root / target).is_file():
            return match[0]
        copy_source(root, target, into)
        return f"{match[1]}{match[2]}.md"

    def simplify(match: re.Match[str]) -> str:
        file = re.search(r"file=(\S+)", match["options"])
        title = f' title="{file[1]}"' if file else ""
        return f"{match['indent']}{match['ticks']}{match['language']}{title}"

    text = (root / page).read_text(encoding="utf-8")
    (into / page).parent.mkdir(parents=True, exist_ok=True)
    (into / page).write_text(_FENCE.sub(simplify, _LINK.sub(follow, text)), encoding="utf-8")


def copy_source(root: Path, source: Path, into: Path) -> None:
    """Write a page that shows a program."""
    page = into / f"{source.as_posix()}.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    text = (root / source).read_text(encoding="utf-8")
    page.write_text(
        f"# {source.as_posix()}\n\n````{LANGUAGES.get(source.suffix, 'text')}\n{text}````\n", encoding="utf-8"
    )


def assemble(root: Path, into: Path) -> Path:
    """Write the pages and mkdocs.yml into a new folder; return the path of mkdocs.yml."""
    shutil.rmtree(into, ignore_errors=True)
    pages = [*map(Path, PAGES), *(page.relative_to(root) for page in sorted((root / "docs").rglob("*.md")))]
    pages += [page.relative_to(root) for page in sorted((root / "examples").rglob("*.md"))]
    for page in pages:
        copy_page(root, page, into / "pages")
    shutil.copytree(root / "docs" / "pictures", into / "pages" / "docs" / "pictures")
    settings = SETTINGS | {"docs_dir": "pages", "site_dir": "site", "nav": make_navigation(root)}
    text = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True, width=10_000)
    # As GitHub makes them: the anchors that pages are linked with there.
    text = text.replace("'!slugify'", "!!python/object/apply:pymdownx.slugs.slugify\n      kwds: {case: lower}")
    place = into / "mkdocs.yml"
    place.write_text(text, encoding="utf-8")
    return place


def make_offline(site: Path) -> Iterator[str]:
    """Replace the script that the theme would load from another host; yield what its pages load from others still."""
    shutil.copy(WORKER, site / "assets" / "javascripts")
    for page in sorted(site.rglob("*.html")):
        local = os.path.relpath(site / "assets" / "javascripts" / WORKER.name, page.parent)
        text = page.read_text(encoding="utf-8").replace(_SHIM, local)
        page.write_text(text, encoding="utf-8")
        yield from (f"{page.relative_to(site)}: {address}" for address in _LOADED.findall(text))


def main() -> int:
    """Build the site, and fail for a broken link or a page without a place."""
    parser = argparse.ArgumentParser(prog="python -m tools.site", description=__doc__.splitlines()[0])
    parser.add_argument("--into", type=Path, default=ROOT / "dist" / "site", help="the folder of the site")
    options = parser.parse_args()
    if unlisted := find_unlisted(ROOT):
        print(f"{INDEX} does not list {', '.join(unlisted)}: add each to the section where a reader looks for it")
        return 1
    settings = assemble(ROOT, ROOT / "build" / "site")
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", str(settings)]
    built = subprocess.run(command, check=False, env={**os.environ, "NO_COLOR": "1"})
    if built.returncode:
        return 1
    if loaded := list(make_offline(settings.parent / "site")):
        print("a page would load this from another host:", *loaded, sep="\n")
        return 1
    shutil.rmtree(options.into, ignore_errors=True)
    shutil.move(settings.parent / "site", options.into)
    print(f"open {options.into.relative_to(ROOT) if options.into.is_relative_to(ROOT) else options.into}/index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
