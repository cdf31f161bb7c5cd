"""The published clients of our service can do what docs/http.md says."""

import pytest

from tests.clients.matrix import (
    BEGIN,
    END,
    LANGUAGES,
    PAGE,
    find_languages,
    get_client,
    render,
    render_tables,
    try_clients,
)

pytestmark = [pytest.mark.real_time, pytest.mark.filterwarnings("ignore::ResourceWarning")]


def read_tables() -> str:
    return PAGE.read_text().partition(BEGIN)[2].partition(END)[0]


def read_rows() -> list[str]:
    clients = [client for names in LANGUAGES.values() for client in names]
    rows = {get_client(row): row for row in read_tables().splitlines()}
    return [rows[client] for client in clients if client in rows]


@pytest.mark.rule("W-20", "W-22", "W-23", "W-24")
@pytest.mark.skipif(
    not find_languages(), reason="NOT TRIED WITH PUBLISHED CLIENTS: they are not in .clients; `make clients` gets them"
)
def test_published_clients_can_do_what_the_tables_say() -> None:
    languages = find_languages()
    results = try_clients(languages)
    tried = [client for language in languages for client in LANGUAGES[language]]
    rows = [row for row in read_rows() if get_client(row) in tried]
    errors = "\n".join(f"{trial.client}, {trial.feature}: {error}" for trial, error in results.items() if error)
    assert render(results).splitlines() == rows, f"see `python -m tests.clients.matrix`. What failed:\n{errors}"


def test_the_tables_have_the_features_and_clients_that_are_tried() -> None:
    rows = read_rows()
    assert len(rows) == sum(map(len, LANGUAGES.values()))
    assert read_tables() == render_tables(rows)
