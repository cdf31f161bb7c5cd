"""Parts of modules by their names."""

import math
from pathlib import Path

import pytest

from cantrip_actors import InvalidCantrip
from cantrip_actors.terms.imports import import_part


def test_a_part_of_a_part_follows_a_dot() -> None:
    assert import_part("os:path.join", "here") is __import__("os").path.join
    assert import_part("math:pi", "here") == math.pi


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", 'here: expected "module:name", got ""'),
        ("math", 'here: expected "module:name"'),
        ("math:", 'here: expected "module:name"'),
        (":pi", 'here: expected "module:name"'),
        (".math:pi", 'here: expected "module:name"'),
        ("..:pi", 'here: expected "module:name"'),
        ("os..path:join", 'here: expected "module:name"'),
        ("not_there:x", "here: cannot import not_there"),
        ("broken_syntax:x", "here: cannot import broken_syntax"),
        ("math:sqr", 'here: math has no "sqr": did you mean "sqrt"'),
        ("math:pi.reel", 'here: math has no "reel": did you mean "real"'),
    ],
)
def test_a_name_that_leads_nowhere_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, message: str
) -> None:
    (tmp_path / "broken_syntax.py").write_text("x = (\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidCantrip) as refused:
        import_part(source, "here")
    assert str(refused.value).startswith(message)
