"""Unregistered secrets, recognised by their shape or by the name next to them (X-31, X-32)."""

import base64
import os
import random
import re
import string
import subprocess
import sys
import sysconfig
from pathlib import Path
from urllib.parse import quote

import pytest

from cantrip_actors.redact.redactor import Redactor
from cantrip_actors.redact.services import SERVICES, SHORTEST_KEY
from cantrip_actors.redact.stream import RedactedStream

RANDOM = random.Random(31)  # made-up keys, the same in each run
ALNUM = string.ascii_letters + string.digits
SIGNS = string.ascii_letters + string.digits + string.punctuation


def some(alphabet: str, length: int) -> str:
    """So many signs of an alphabet, as inside of an expression's brackets, a digit among them if there are any."""
    signs = [sign for sign in SIGNS if re.match(f"[{alphabet}]", sign)]
    digits = [sign for sign in signs if sign.isdigit()]
    made = RANDOM.choices(signs, k=length)
    if digits and not any(sign.isdigit() for sign in made[1:-1]):
        made[length // 2] = RANDOM.choice(digits)
    ends = [sign for sign in signs if sign.isalnum()]
    return RANDOM.choice(ends) + "".join(made[1:-1]) + RANDOM.choice(ends)


def of_services():
    """One made-up key for each prefix of the table."""
    for service in SERVICES:
        for prefix in service.prefixes:
            yield f"{service.name} {prefix}", prefix + some(service.alphabet, service.least)


HEX, KEY = "a-f0-9", "A-Za-z0-9"
WORDY = {
    "openai, the short example": "sk-proj-" + "very-secret",
    "openai, old": "sk-" + some(KEY, 48),
    "deepseek": "sk-" + some(HEX, 32),
    "aws id": "AKIA" + some("A-Z2-7", 16),
    "aws session id": "ASIA" + some("A-Z2-7", 16),
    "airtable": "pat" + some(KEY, 14) + "." + some(HEX, 64),
    "resend": "re_" + some("1-9A-Za-z", 8) + "_" + some("1-9A-Za-z", 24),
    "1password key": "A3-" + "-".join(some("A-Z0-9", n) for n in (6, 6, 5, 5, 5, 5)),
    "terraform": some(KEY, 14) + ".atlasv1." + some(KEY, 64),
    "telegram": some("1-9", 10) + ":AA" + some(KEY, 33),
    "azure secret": some(KEY, 3) + "8Q~" + some(KEY, 34),
    "mailchimp": some(HEX, 32) + "-us12",
    "facebook app": some("1-9", 15) + "|" + some(KEY, 27),
    "maxmind": some(KEY, 6) + "_" + some(KEY, 29) + "_mmk",
    "salesforce": "00D" + some(KEY, 12) + "!A" + some(KEY, 90),
    "discord": "MT" + some(KEY, 22) + "." + some(KEY, 6) + "." + some(KEY, 27),
    "sendgrid": "SG." + some(KEY, 22) + "." + some(KEY, 43),
    "jwt": "eyJ" + some(KEY, 30) + ".eyJ" + some(KEY, 40) + "." + some(KEY, 43),
    "azure storage": some(KEY, 76) + "+ASt" + some(KEY, 6) + "==",
    "azure registry": some(KEY, 42) + "+ACRA" + some(KEY, 5),
    "firebase": "AAAA" + some(KEY, 7) + ":APA91b" + some(KEY, 134),
    "deepl": f"{some(HEX, 8)}-{some(HEX, 4)}-{some(HEX, 4)}-{some(HEX, 4)}-{some(HEX, 12)}:fx",
    "mapbox": "sk.eyJ" + some(KEY, 60) + "." + some(KEY, 22),
    "workato": "wrkaeu-eyJ" + some(KEY, 20) + "." + some(KEY, 40) + "." + some(KEY, 80),
    "clickup": "pk_12345678_" + some("A-Z0-9", 32),
    "authress": f"sc_{some('a-z0-9', 10)}.{some('a-z0-9', 4)}.acc-{some('a-z0-9', 12)}.{some('a-z0-9', 40)}",
    "private key": "-----BEGIN " + "EC PRIVATE KEY-----\n" + some(KEY, 64) + "\n-----END EC PRIVATE KEY-----",
}
BY_NAME = {
    **dict.fromkeys(("COHERE_API_KEY", "CLOUDFLARE_API_TOKEN", "AWS_SECRET_ACCESS_KEY", "JIRA_API_TOKEN"), (KEY, 40)),
    **dict.fromkeys(("MISTRAL_API_KEY", "SEGMENT_WRITE_KEY", "JWT_SECRET", "FASTLY_API_TOKEN"), (KEY, 32)),
    **dict.fromkeys(("DD_API_KEY", "ALGOLIA_ADMIN_KEY", "TWILIO_AUTH_TOKEN", "RAILS_MASTER_KEY"), (HEX, 32)),
    **dict.fromkeys(("DD_APP_KEY", "DD_APPLICATION_KEY", "GH_PAT", "SONAR_TOKEN", "DEEPGRAM_API_KEY"), (HEX, 40)),
    **dict.fromkeys(("ENCRYPTION_KEY", "SECRET_KEY_BASE", "VIRUSTOTAL_API_KEY", "TRELLO_TOKEN"), (HEX, 64)),
    **dict.fromkeys(("MAILGUN_SIGNING_KEY", "LOGDNA_INGESTION_KEY", "FACEBOOK_APP_SECRET"), (HEX, 32)),
    **dict.fromkeys(("AZURE_STORAGE_KEY", "INFLUXDB_TOKEN", "DJANGO_SECRET_KEY", "FERNET_KEY"), (KEY, 50)),
    **dict.fromkeys(("SNYK_TOKEN", "CODECOV_TOKEN", "CONSUL_HTTP_TOKEN", "HEROKU_API_KEY"), (f"{HEX}-", 36)),
    **dict.fromkeys(("PGPASSWORD", "MYSQL_PWD", "REDIS_PASSWORD"), (KEY, 12)),
}
"""Keys without a shape of their own, by the names under which their services document them."""
NAMED_KEYS = {name: some(*shape) for name, shape in BY_NAME.items()}
VALUE = "hunter2" + some(KEY, 3)
LONG = some(KEY, 40)
NAMED = {
    "JSON": ('{"user": "me", "password": "%s", "n": 1}', VALUE),
    "JSON in JSON": (r"{\"password\": \"%s\"}", VALUE),
    "JSON, an API key": ('{"apiKey": "%s"}', some(KEY, 12)),
    "JSON, a client's secret": ('{"client_secret":"%s"}', some(KEY, 24)),
    "YAML": ("user: me\npassword: %s\n", VALUE),
    "YAML, quoted": ("  db_password: '%s'\n", VALUE),
    "TOML": ('token = "%s"\n', VALUE),
    "an environment": ("export DB_PASSWORD=%s\n", VALUE),
    "an environment, a token": ("GITHUB_TOKEN=%s\nHOME=/root", some(HEX, 40)),
    "a properties file": ("spring.datasource.password=%s\n", VALUE),
    "a header": ("X-Api-Key: %s\r\nHost: x", some(KEY, 20)),
    "a header, a token": ("X-Auth-Token: %s\r\n", some(KEY, 20)),
    "Basic": ("Authorization: Basic %s\r\n", base64.b64encode(b"me:hunter22").decode()),
    "Bearer": ("authorization: bearer %s\r\n", some(KEY, 20)),
    "Authorization, raw": ("Authorization: %s\r\n", some(KEY, 32)),
    "Digest": ('Authorization: Digest username="me", realm="x", response="%s", opaque="y"', some(HEX, 32)),
    "a cookie": ("Cookie: %s\r\n", f"session={some(KEY, 20)}; theme=dark"),
    "Set-Cookie": ("Set-Cookie: %s; HttpOnly", f"sid={some(KEY, 20)}; Path=/"),
    "a query, key": ("GET /v1/x?key=%s&q=1", some(KEY, 20)),
    "a query, code": ("https://x.example/callback?code=%s&state=1", some(KEY, 20)),
    "a query, token": ("https://x.example/?access_token=%s#a", some(KEY, 20)),
    "a SAS signature": (
        "https://a.blob.example/c?sv=2024&sp=r&sig=%s&se=1",
        quote(some("A-Za-z0-9+/", 43) + "=", safe=""),
    ),
    "AWS, signed": ("https://b.s3.example/k?X-Amz-Expires=60&X-Amz-Signature=%s", some(HEX, 64)),
    "libpq": ("host=db user=me password=%s dbname=x", VALUE),
    "ADO": ("Server=db;Database=x;User Id=me;Password=%s;", VALUE),
    "ADO, short": ("Server=db;Uid=me;Pwd=%s;", VALUE),
    "Azure storage": ("DefaultEndpointsProtocol=https;AccountName=a;AccountKey=%s;", some("A-Za-z0-9+/", 86) + "=="),
    "Azure bus": ("Endpoint=sb://x/;SharedAccessKeyName=root;SharedAccessKey=%s;", some("A-Za-z0-9+/", 43) + "="),
    "netrc": ("machine x.example login me password %s\n", VALUE),
    "pgpass": ("db.example:5432:app:me:%s\n", VALUE),
    "an URL": ("postgres://me:%s@db.example/x", VALUE),
    "an URL, a token": ("https://%s@git.example/x.git", some(KEY, 24)),
    "AWS's secret": ("aws_secret_access_key = %s\n", some("A-Za-z0-9+/", 40)),
    "code": ("client = Client(password='%s')", VALUE),
    "Ruby": (":secret => '%s',", VALUE),
    "Slack's hook": (
        "https://hooks.slack.com/services/%s",
        f"T{some('A-Z0-9', 8)}/B{some('A-Z0-9', 8)}/{some(KEY, 24)}",
    ),
    "Discord's hook": ("https://discord.com/api/webhooks/123456789012345678/%s", some(KEY, 68)),
    "Teams' hook": (
        "https://acme.webhook.office.com/webhookb2/%s",
        some(HEX, 36) + "@" + some(HEX, 36) + "/IncomingWebhook/x",
    ),
}
WORDS = [*of_services(), *WORDY.items()]
CORPUS = [
    *((what, f"the key is {key} here", key) for what, key in WORDS),
    *((w, t % v, v) for w, (t, v) in NAMED.items()),
]


@pytest.mark.rule("X-31")
def test_the_corpus_has_enough_formats() -> None:
    assert len({what.split()[0] for what, *_ in CORPUS[: len(WORDS)]}) + len(NAMED) > 130


@pytest.mark.rule("X-31", "Z-22")
@pytest.mark.parametrize(("text", "secret"), [c[1:] for c in CORPUS], ids=[c[0] for c in CORPUS])
def test_an_unregistered_secret_is_found(text: str, secret: str) -> None:
    said = Redactor().text(text)
    assert secret not in said
    assert "[redacted:" in said
    assert Redactor().text(said) == said
    body = max(re.findall(r"[A-Za-z0-9]+", secret), key=len)
    assert body not in said


@pytest.mark.rule("X-31")
@pytest.mark.parametrize("key", ["hf_aBcdEfGhJkLmNpQrStUvWxYzAbCdEfGhJk", "gsk_" + "aBcdEfGhJkLmNpQrStUvWxYz" * 2])
def test_a_key_of_letters_only_is_found_when_its_alphabet_has_no_word_separator(key: str) -> None:
    assert key not in Redactor().text(f"the key is {key}")


@pytest.mark.rule("X-31", "Z-22")
@pytest.mark.parametrize("form", ["%s=%s", "export %s='%s'", '"%s": "%s"', "%s: %s", "-e %s=%s --rm"])
def test_a_key_without_a_shape_is_found_by_the_name_that_its_service_documents(form: str) -> None:
    keys = NAMED_KEYS | {name.lower(): key for name, key in NAMED_KEYS.items()}
    assert [name for name, key in keys.items() if key in Redactor().text(form % (name, key))] == []


@pytest.mark.rule("X-31")
@pytest.mark.parametrize("scheme", ["SSWS", "GenieKey", "Bot", "Key"])
def test_a_key_in_a_header_with_a_scheme_of_its_service_is_found(scheme: str) -> None:
    key = some(KEY, 42)
    assert Redactor().text(f"Authorization: {scheme} {key}") == f"Authorization: {scheme} [redacted:authorization]"


@pytest.mark.rule("X-31")
@pytest.mark.parametrize("around", ['{"k":"%s"}', "KEY=%s", "(%s)", "%s", "a=%s&b", "x\n%s\ny", "`%s`", r"\"%s\""])
def test_a_key_is_found_in_any_surroundings(around: str) -> None:
    missed = [what for what, key in WORDS if "PRIVATE" not in key and key in Redactor().text(around % key)]
    assert missed == []


@pytest.mark.rule("X-31")
@pytest.mark.parametrize("size", [1, 5])
def test_a_stream_in_pieces_finds_the_same_as_the_whole_text(size: int) -> None:
    for what, text, secret in CORPUS[::3]:
        stream = RedactedStream(Redactor())
        said = "".join(stream.feed(text[at : at + size]) for at in range(0, len(text), size)) + stream.close()
        assert secret not in said, what


@pytest.mark.rule("X-31")
def test_every_secret_that_a_maintained_scanner_finds_is_found() -> None:
    betterleaks = pytest.importorskip("betterleaks", reason="betterleaks, a scanner, has no wheels for this Python")
    missed = {}
    for what, text, _ in CORPUS:
        said = Redactor().text(text)
        for finding in betterleaks.scan_string(text):
            if len(finding.secret) >= SHORTEST_KEY and finding.secret in said:
                missed[what] = finding.rule_id
    assert missed == {}


@pytest.mark.rule("X-32")
@pytest.mark.parametrize("before", [b"", b"u:", b"user:"])
def test_a_key_in_base64_is_found(before: bytes) -> None:
    missed = []
    for what, key in WORDS:
        if "PRIVATE" in key:
            continue
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            encoded = encode(before + key.encode()).decode()
            if encoded.rstrip("=") in Redactor().text(f"data: {encoded}."):
                missed.append(what)
    assert missed == []


@pytest.mark.rule("X-32")
@pytest.mark.parametrize("seed", range(4))
def test_several_keys_in_one_base64_text_have_the_name_of_the_first_in_every_process(seed: int) -> None:
    services = [one for one in SERVICES if re.fullmatch(r"[a-z]+_", one.prefixes[0])]
    first = services[len(services) // 2]
    keys = [one.prefixes[0] + some(one.alphabet, one.least) for one in (first, *services)]
    text = base64.b64encode(" ".join(keys).encode()).decode()
    done = subprocess.run(
        [sys.executable, "-c", SHOWN, text],
        env={**os.environ, "PYTHONHASHSEED": str(seed)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == f"[redacted:{first.name}]"


SHOWN = "import sys; from cantrip_actors.redact.redactor import Redactor; print(Redactor().text(sys.argv[1]))"


# ---------------------------------------------------------------------------------------------------- what is no secret


def prose_and_code():
    """10 MB: the standard library's source, without its tests, which have keys."""
    root, size = sysconfig.get_path("stdlib"), 0
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(one for one in folders if "test" not in one and one != "site-packages")
        for name in sorted(names):
            if name.endswith(".py") and size < 10_000_000:
                text = Path(folder, name).read_text(errors="replace")
                size += len(text)
                yield f"{name}: ", text


def blobs():
    """Pictures in base64, in one line and in many, hashes and ids."""
    made = random.Random(7)  # not for secrets
    for number in range(40):
        data = base64.b64encode(made.randbytes(24_000)).decode()
        yield f"picture {number}", data
        yield f"picture {number}, in lines", "\n".join(data[at : at + 76] for at in range(0, len(data), 76))
    yield "hashes", " ".join(made.randbytes(n).hex() for n in (16, 20, 32, 64) for _ in range(400))
    ids = (made.randbytes(16).hex() for _ in range(2000))
    yield "ids", "\n".join(f"{i[:8]}-{i[8:12]}-{i[12:16]}-{i[16:20]}-{i[20:]}" for i in ids)
    yield "zeros", base64.b64encode(bytes(30_000)).decode()


@pytest.mark.rule("X-31")
def test_source_code_images_hashes_and_ids_are_not_redacted() -> None:
    redactor = Redactor()
    found = [
        (what, text[max(0, span.start - 30) : span.end])
        for what, text in (*prose_and_code(), *blobs())
        for span in redactor.spans(text)
    ]
    assert found == []


@pytest.mark.rule("X-31")
@pytest.mark.parametrize(
    "text",
    [
        "the password is asked for, and a token of 12 words",
        'password: str = ""',
        "token = tokens[0]",
        "def login(password=None, token: Token2 = None): ...",
        "secret = os.environ['SECRET_1']",
        'secret = "${SECRET_1}"',
        'password: "<your-password-1>"',
        "api_key = settings.api_key2",
        'algorithm, key = "sha256", "utf-8"',
        'secret_hash: "sha512"',
        "?key=value&code=404&sig=none",
        "token2 = token1",
        "private_key: Ed25519PrivateKey",
        'token: "/run/secrets/token1"',
        "the cookie: it is sweet",
        "file.c:5432:12:error:unexpected",
        "12:34:56:78:90:ab",
        "class='sk-cube-grid-1 sk-circle'",
        "re_compile_everything_that_is_there_1",
        "task-force-1234567890123456789012",
    ],
)
def test_text_that_only_resembles_a_secret_is_not_redacted(text: str) -> None:
    assert Redactor().text(text) is text


@pytest.mark.rule("X-31")
def test_every_service_row_has_a_length_and_a_source() -> None:
    for service in SERVICES:
        for prefix in service.prefixes:
            assert len(prefix) + service.least >= SHORTEST_KEY, prefix
        assert service.source in {"gitleaks", "issuer"}
    assert len({service.name for service in SERVICES}) > 100
