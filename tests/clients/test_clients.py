"""The published clients of our service can do what docs/http.md says."""

import pytest

from tests.clients.matrix import BEGIN, END, LANGUAGES, PAGE, find_languages, render, render_head, try_clients

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.mark.rule("W-20", "W-22")
@pytest.mark.skipif(
    not find_languages(), reason="NOT TRIED WITH PUBLISHED CLIENTS: they are not in .clients; `make clients` gets them"
)
def test_published_clients_can_do_what_the_table_says() -> None:
    languages = find_languages()
    results = try_clients(languages)
    table = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    clients = [client for language in languages for client in LANGUAGES[language]]
    rows = [row for row in table.splitlines() if row.partition(" | ")[0].removeprefix("| ") in clients]
    errors = "\n".join(f"{trial.client}, {trial.feature}: {error}" for trial, error in results.items() if error)
    assert render(results).splitlines() == rows, f"see `python -m tests.clients.matrix`. What failed:\n{errors}"


def test_the_table_of_clients_has_the_features_and_clients_that_are_tried() -> None:
    table = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    assert table.startswith(render_head())
    rows = [row.partition(" | ")[0].removeprefix("| ") for row in table.splitlines()[2:]]
    assert rows == [client for names in LANGUAGES.values() for client in names]
