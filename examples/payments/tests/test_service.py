"""The service answers over HTTP."""

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from payments_desk import service
from payments_desk.bank import FileBank


@pytest.fixture
def client(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(service, "LOOM", f"sqlite:{tmp_path / 'desk.db'}")
    monkeypatch.setattr(service, "BANK", FileBank(tmp_path / "bank.db"))
    monkeypatch.setattr(service, "PATIENCE", 0.3)
    with TestClient(service.app) as client:
        yield client


def ask(client: TestClient, text: str, user: str = "otto", key: str = "1"):
    return client.post("/intents", params={"text": text}, headers={"x-user": user, "idempotency-key": key})


def test_a_repeated_request_gets_the_same_answer_and_pays_once(client):
    answers = [ask(client, "Pay 20 to Anna.").json() for _ in range(2)]
    assert answers == [{"answer": "Paid 20 to Anna."}] * 2
    assert service.BANK.list_transfers() == [("otto", "Anna", 20)]


def test_each_user_pays_from_an_account_of_their_own(client):
    for user in ("otto", "carla"):
        ask(client, "Pay 5 to Anna.", user)
    assert service.BANK.list_transfers() == [("otto", "Anna", 5), ("carla", "Anna", 5)]


def test_a_large_payment_waits_for_a_person(client):
    assert ask(client, "Pay 500 to Anna.").status_code == 202
    (request,) = client.get("/requests").json()
    assert request["payment"] == {"to": "Anna", "amount": 500}
    client.post(f"/requests/{request['id']}", params={"allow": True}, headers={"x-user": "carla"})
    assert ask(client, "Pay 500 to Anna.").json() == {"answer": "Paid 500 to Anna."}
    assert client.get("/health").status_code == 200


def test_a_decision_about_an_unknown_payment_is_404(client):
    headers = {"x-user": "carla"}
    assert client.post("/requests/nothing", params={"allow": True}, headers=headers).status_code == 404
