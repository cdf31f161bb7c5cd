"""Fake clouds that check the credentials of a request, for the tests of `bedrock`, `vertex` and `azure`.

Signatures are checked with botocore, and assertions with google-auth, with keys of the fake server.
"""

import json
from urllib.parse import parse_qs

import orjson
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.session import Session
from botocore.validate import ParamValidator
from google.auth import crypt, jwt

from cantrip_actors.crystal.testing import ReceivedRequest, Reply, failing
from tests.crystal.streams import Said, framed

REGION = "eu-north-1"
_CONVERSE = Session().get_service_model("bedrock-runtime").operation_model("ConverseStream").input_shape


def answer(family: str, text: str = "hi") -> Reply:
    kind = "application/vnd.amazon.eventstream" if family == "bedrock" else "text/event-stream"
    return Reply(framed(family, Said("", text)), content_type=kind)


class Amazon:
    """Bedrock for one user, whose keys may be changed (`issue`). What is not signed with them is refused."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)
        self.asked: list[ReceivedRequest] = []
        self.url = ""
        self.issue("AKIDFIRST", "secret-of-the-first-key")

    def issue(self, key: str, secret: str, token: str | None = None) -> None:
        self.keys = Credentials(key, secret, token)

    def __call__(self, asked: ReceivedRequest) -> Reply:
        self.asked.append(asked)
        if not self.is_signed(asked):
            return failing(403, {"message": f"The security token of {asked.headers} is invalid"})
        report = ParamValidator().validate(_shape(asked), _CONVERSE)
        if report.has_errors():
            return failing(400, {"message": report.generate_report()})
        return self.replies.pop(0) if self.replies else answer("bedrock")

    def is_signed(self, asked: ReceivedRequest) -> bool:
        """Sign what came with the keys that are valid, and compare."""
        kind, _, told = asked.headers.get("authorization", "").partition(" ")
        parts = dict(part.split("=", 1) for part in told.split(", ")) if kind == "AWS4-HMAC-SHA256" else {}
        if not parts or asked.headers.get("x-amz-security-token") != self.keys.token:
            return False
        names = parts["SignedHeaders"].split(";")
        headers = {name: asked.headers[name] for name in names}
        auth = SigV4Auth(self.keys, "bedrock", REGION)
        request = AWSRequest(asked.method, f"{self.url}{asked.path}", headers, asked.body)
        request.context["timestamp"] = asked.headers["x-amz-date"]
        scope = f"{self.keys.access_key}/{auth.credential_scope(request)}"
        signature = auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)
        return (parts["Credential"], parts["Signature"]) == (scope, signature) and "host" in names


def _shape(asked: ReceivedRequest) -> dict:
    """The parameters as botocore has them: bytes in the place of base64."""
    given = orjson.loads(asked.body)
    for message in given["messages"]:
        for block in message["content"]:
            for one in [block, *block.get("toolResult", {}).get("content", ())]:
                if "image" in one:
                    one["image"]["source"]["bytes"] = one["image"]["source"]["bytes"].encode()
                if "redactedContent" in one.get("reasoningContent", ()):
                    one["reasoningContent"]["redactedContent"] = b"hidden"
    return {"modelId": "m", **given}


class Google:
    """A token server, and Vertex behind it. It issues `token-1`, `token-2`, …; `valid` is the one that it takes."""

    def __init__(self, family: str, public_key: bytes, lasts: int = 3600) -> None:
        self.family = family
        self.public_key = public_key
        self.lasts = lasts
        self.issued = 0
        self.asked: list[ReceivedRequest] = []
        self.down = 0
        """How many requests for a token fail first."""

    def __call__(self, asked: ReceivedRequest) -> Reply:
        if asked.path == "/token":
            return self.token(asked)
        self.asked.append(asked)
        if asked.headers.get("authorization") != f"Bearer token-{self.issued}":
            told = {"error": {"code": 401, "message": "invalid authentication", "status": "UNAUTHENTICATED"}}
            return failing(401, told)
        return answer(self.family)

    def token(self, asked: ReceivedRequest) -> Reply:
        if self.down:
            self.down -= 1
            return failing(503, {"error": "unavailable"})
        (assertion,) = parse_qs(asked.body.decode())["assertion"]
        claims = jwt.decode(assertion, certs=self.public_key)  # raises where it is not signed by the account's key
        assert claims["scope"] == "https://www.googleapis.com/auth/cloud-platform"
        self.issued += 1
        told = {"access_token": f"token-{self.issued}", "expires_in": self.lasts, "token_type": "Bearer"}
        return Reply(orjson.dumps(told), content_type="application/json")


def service_account(folder, url: str, private_key: str):
    """The file of a service account whose tokens come from `url`."""
    file = folder / "account.json"
    told = {
        "type": "service_account",
        "client_email": "robot@example.iam.gserviceaccount.com",
        "private_key": private_key,
        "private_key_id": "1",
        "token_uri": f"{url}/token",
        "project_id": "from-the-file",
    }
    file.write_text(json.dumps(told))
    assert crypt.RSASigner.from_service_account_info(told)
    return file
