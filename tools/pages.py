"""Write a generated page, or compare it with the present file."""

import difflib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def settle(page: Path, text: str, *, check: bool) -> int:
    """Write a page, or with `check` only print how it differs; return 0 if it is up to date, else 1."""
    name = page.relative_to(ROOT).as_posix()
    standing = page.read_text(encoding="utf-8") if page.exists() else ""
    if text == standing:
        print(f"{name} is up to date")
        return 0
    if not check:
        page.write_text(text, encoding="utf-8")
        print(f"wrote {name}")
        return 0
    print(f"{name} is out of date; run `make docs`:")
    diff = difflib.unified_diff(standing.splitlines(), text.splitlines(), "is", "should be", lineterm="", n=0)
    print(*diff, sep="\n")
    return 1
