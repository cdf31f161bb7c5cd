"""`python -m bench scale` measures a loom of many entities, and names a cost that grows with their number."""

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from bench import scale
from cantrip_actors.looms import open_store, verify_loom

pytestmark = [pytest.mark.rule("C-06"), pytest.mark.real_time]


def test_a_filled_loom_is_whole_and_each_measure_has_a_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "SENDS": 2,
        "DUE": 2,
        "FORGOTTEN": 1,
        "AT_ONCE": 2,
        "PAGES": 2,
        "LEAD": 0.2,
        "BATCH": 8,
    }.items():
        monkeypatch.setattr(scale, name, value)
    url = f"sqlite:{tmp_path}/loom.db"
    scale.fill(url, 20)
    with open_store(url) as store:
        assert verify_loom(store).ok
    figures = scale.measure(url, 20)
    assert {"open_mb", *scale.MEASURES} == figures.keys()
    assert all(figures[name] > 0 for name in scale.MEASURES)


def rows(**costs: float) -> dict[int, dict[str, float]]:
    """Costs with a thousand entities, and those with a hundred thousand."""
    return {1_000: dict.fromkeys(scale.MEASURES, 5.0), 100_000: dict.fromkeys(scale.MEASURES, 6.0) | costs}


def test_a_cost_that_grows_with_the_number_of_entities_is_named() -> None:
    assert scale.find_growth(rows()) == []
    assert scale.find_growth(rows(page=50.0)) == ["page: 5.0 ms with 1,000 entities, 50.0 ms with 100,000"]


def test_the_plot_has_a_line_for_each_measure() -> None:
    drawn = ET.fromstring(scale.draw(rows()))
    lines = drawn.findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == len(scale.MEASURES)
    assert all(len(line.attrib["points"].split()) == 2 for line in lines)
