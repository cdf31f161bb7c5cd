"""The table of services whose keys begin with a prefix of their own, by which they can be found.

A row has the prefixes of the keys, the characters of the rest (the inside of a regular expression's `[…]`), and their
least number. The prefixes are those that issuers publish, or that repository scanners look for: `gitleaks` and
`betterleaks` have such lists, under the MIT licence. For a key whose shape is known in more detail, `patterns.py` has
an expression.

A key has at least 15 characters, prefix included: shorter words are not searched.
"""

from __future__ import annotations

from typing import Final, NamedTuple

SHORTEST_KEY: Final = 15
"""Characters of the shortest key of the table, with its prefix."""

_HEX = "a-f0-9"
_ANYHEX = "A-Fa-f0-9"
_ALNUM = "A-Za-z0-9"
_LOWER = "a-z0-9"
_UPPER = "A-Z0-9"
_WORD = "A-Za-z0-9_"
_URL = "A-Za-z0-9_-"
_BASE64 = "A-Za-z0-9+/"
_DOTTED = "A-Za-z0-9_.=-"


class KeyedService(NamedTuple):
    """Keys of a service: `name` stands in markers, `prefixes` begin a key, `least` of the `alphabet` follow."""

    name: str
    prefixes: tuple[str, ...]
    alphabet: str
    least: int
    source: str = "gitleaks"
    """The source: `gitleaks` for the lists of scanners, `issuer` for the issuer's documentation."""
    most: int = 0
    """The greatest number of characters, followed by no base64 character; 0 for no bound. Prefixes of only letters and
    digits need it, since base64 pictures contain any of them.
    """
    digit: bool = False
    """Whether one of them has to be a digit: else names of variables and CSS classes would match."""


def _row(
    name: str, prefixes: str, alphabet: str, least: int, source: str = "gitleaks", *, most: int = 0, digit: bool = True
) -> KeyedService:
    is_wordy = "_" in alphabet or alphabet.endswith("-")  # the others have a hyphen too, between the ends of a range
    return KeyedService(name, tuple(prefixes.split()), alphabet, least, source, most, digit and is_wordy)


SERVICES: Final[tuple[KeyedService, ...]] = (
    # models
    _row("anthropic-key", "sk-ant-", _URL, 16, "issuer", digit=False),
    _row("openai-key", "sk-proj- sk-svcacct- sk-admin-", _URL, 8, "issuer", digit=False),
    _row("openrouter-key", "sk-or-v1-", _HEX, 32),
    _row("langfuse-key", "sk-lf-", f"{_HEX}-", 30),
    _row("langsmith-key", "lsv2_pt_ lsv2_sk_", f"{_ANYHEX}_", 40),
    _row("groq-key", "gsk_", _ALNUM, 32, "issuer"),
    _row("xai-key", "xai-", _URL, 40, "issuer"),
    _row("perplexity-key", "pplx-", _ALNUM, 32, "issuer"),
    _row("cerebras-key", "csk-", _LOWER, 40),
    _row("together-key", "tgp_v1_", _URL, 40),
    _row("replicate-token", "r8_", _ALNUM, 37),
    _row("huggingface-token", "hf_ api_org_", _ALNUM, 30, "issuer"),
    _row("nvidia-key", "nvapi-", _URL, 60),
    _row("llama-cloud-key", "llx-", _ALNUM, 44),
    _row("pinecone-key", "pcsk_", _WORD, 40),
    _row("wandb-key", "wandb_v1_", _WORD, 40),
    _row("brave-search-key", "BSA", _URL, 24, most=40),
    _row("apify-token", "apify_api_", _ALNUM, 34),
    _row("tavily-key", "tvly-", _URL, 20, "issuer"),
    _row("cartesia-key", "sk_car_", _WORD, 20),
    _row("devin-key", "apk_user_ cog_", _BASE64, 52),
    _row("devin-key", "apk_", _BASE64, 80),
    _row("elevenlabs-key", "sk_", _HEX, 48),
    _row("mem0-key", "m0-", _ALNUM, 26),
    _row("runpod-key", "rpa_", _ALNUM, 30),
    _row("retell-key", "key_", _HEX, 28),
    _row("unkey-key", "unkey_", _ALNUM, 20),
    _row("val-town-token", "vtwn_", _URL, 20),
    # clouds
    _row("google-token", "ya29. GOCSPX-", _URL, 20, "issuer"),
    _row("google-key", "AIza", _URL, 35, "issuer"),
    _row("google-token", "1//0", _URL, 40, "issuer"),
    _row("gemini-key", "AQ.Ab8RN6", _URL, 40),
    _row("bedrock-key", "ABSK bedrock-api-key-", _BASE64, 100),
    _row("alibaba-key", "LTAI", _ALNUM, 17, most=21),
    _row("digitalocean-token", "dop_v1_ doo_v1_ dor_v1_", _HEX, 64),
    _row("cloudflare-token", "cfut_ cfat_", _ALNUM, 40),
    _row("cloudflare-ca-key", "v1.0-", f"{_HEX}-", 100),
    _row("fly-token", "fm1r_ fm2_ fo1_", f"{_BASE64}=_,-", 40, "issuer"),
    _row("heroku-key", "HRKU-", _URL, 36),
    _row("vercel-token", "vca_ vci_ vck_ vcp_ vcr_", _URL, 56),
    _row("netlify-token", "nfp_ nfc_ nfo_", _ALNUM, 36, "issuer"),
    _row("render-key", "rnd_", _ALNUM, 28),
    _row("scaleway-key", "SCW", _UPPER, 17, "issuer", most=17),
    _row("exoscale-key", "EXO", _ALNUM, 24, most=30),
    _row("upcloud-token", "ucat_", _ALNUM, 24),
    _row("openshift-token", "sha256~", _URL, 43),
    _row("tailscale-key", "tskey-", _URL, 20, "issuer"),
    _row("pulumi-token", "pul-", _HEX, 40),
    _row("doppler-token", "dp.pt. dp.st. dp.ct. dp.sa.", f"{_ALNUM}._-", 40, "issuer"),
    _row("infracost-key", "ico-", _ALNUM, 32),
    _row("prefect-key", "pnu_ pnb_", _ALNUM, 36),
    _row("scalingo-token", "tk-us-", _URL, 48),
    _row("defined-networking-key", "dnkey-", _URL, 60),
    _row("rootly-key", "rootly_", _HEX, 64),
    _row("vault-token", "hvs. hvb. hvr.", _URL, 24, "issuer"),
    _row("1password-token", "ops_eyJ", f"{_BASE64}_=-", 60),
    _row("age-key", "AGE-SECRET-KEY-1", "A-Z0-9", 58),
    # code
    _row("github-token", "ghp_ gho_ ghu_ ghs_ ghr_", _ALNUM, 30, "issuer"),
    _row("github-token", "github_pat_", _WORD, 22, "issuer"),
    _row(
        "gitlab-token",
        "glpat- gldt- glft- glffct- glimt- glrt- glptt- gloas- glsoat- glcbt- glagent- GR1348941",
        f".{_URL}",
        20,
        "issuer",
    ),
    _row("bitbucket-token", "BBDC-", f"{_BASE64}=", 32),
    _row("atlassian-token", "ATATT ATCTT", f"={_URL}", 60, "issuer"),
    _row("gitlab-session", "_gitlab_session=", _LOWER, 32),
    _row("aikido-token", "AIK_CI_", _ALNUM, 20),
    _row("cloudsmith-key", "csa_", _ALNUM, 36),
    _row("endorlabs-key", "endr+", _ALNUM, 16),
    _row("settlemint-token", "sm_aat_ sm_pat_ sm_sat_", _ALNUM, 16),
    _row("thunderstore-token", "tss_", _URL, 20),
    _row("zuplo-key", "zpka_", f"{_LOWER}_", 40),
    _row("npm-token", "npm_", _ALNUM, 36, "issuer"),
    _row("pypi-token", "pypi-", _URL, 50, "issuer"),
    _row("rubygems-key", "rubygems_", _HEX, 48),
    _row("clojars-token", "CLOJARS_", _ALNUM, 60),
    _row("docker-token", "dckr_pat_ dckr_oat_", _URL, 27, "issuer"),
    _row("docker-swarm-key", "SWMTKN-1- SWMKEY-1-", f"{_BASE64}-", 40),
    _row("circleci-token", "CCIPAT_ CCIPRJ_", _WORD, 40),
    _row("buildkite-token", "bkua_ bkaa_ bkaj_ bkar_ bkct_ bkpt_ bkpat_ bkps_", _URL, 40),
    _row("sourcegraph-token", "sgp_", _WORD, 40),
    _row("sentry-token", "sntryu_ sntrys_", f"{_BASE64}_=", 60),
    _row("linear-key", "lin_api_ lin_oauth_", _ALNUM, 40),
    _row("notion-token", "ntn_", _ALNUM, 40),
    _row("notion-token", "secret_", _ALNUM, 43),
    _row("figma-token", "figd_ figo_", _URL, 38),
    _row("postman-key", "PMAK-", f"{_ALNUM}-", 40),
    _row("readme-key", "rdme_", _LOWER, 60),
    _row("octopus-key", "API-", _UPPER, 25),
    _row("wakatime-key", "waka_", f"{_LOWER}-", 36),
    _row("harness-key", "pat. sat.", f".{_URL}", 60),
    _row("deno-token", "ddp_ ddw_", _ALNUM, 36),
    _row("mergify-key", "mergify_application_key_", _URL, 40),
    # data
    _row("planetscale-token", "pscale_tkn_ pscale_pw_ pscale_oauth_", _DOTTED, 32),
    _row("neon-key", "napi_", _ALNUM, 60),
    _row("supabase-key", "sb_secret_ sbp_", _URL, 31),
    _row("mongodb-key", "mdb_sa_sk_", _URL, 40),
    _row("astra-token", "AstraCS:", f"{_ALNUM}:", 20),
    _row("cockroach-key", "CCDB1_", _WORD, 40),
    _row("databricks-token", "dapi", f"{_HEX}-", 32, most=34),
    _row("clickhouse-key", "4b1d", _ALNUM, 38, most=38),
    _row("elastic-key", "essu_", f"={_URL}", 60),
    _row("grafana-token", "glsa_ glc_", f"{_BASE64}_=", 40),
    _row("grafana-token", "eyJrIjoi", f"{_BASE64}=", 40),
    _row("databento-key", "db-", _ALNUM, 29, most=29),
    _row("confluent-key", "cflt", _BASE64, 56, "issuer", most=64),
    _row("dynatrace-token", "dt0c01. dt0s01.", f"{_ALNUM}.", 60),
    _row("newrelic-key", "NRAK- NRJS- NRII-", _URL, 19, "issuer"),
    _row("posthog-key", "phx_ phc_", _URL, 41),
    _row("configcat-key", "configcat-sdk-1/", f"/{_URL}", 40),
    _row("devcycle-key", "dvc_server_ dvc_client_ dvc_mobile_", _ALNUM, 8),
    _row("launchdarkly-key", "sdk- mob- api-", f"{_HEX}-", 36),
    # money
    _row("stripe-key", "sk_live_ sk_test_ rk_live_ rk_test_ sk_prod_ rk_prod_ whsec_", _ALNUM, 16, "issuer"),
    _row("square-token", "sq0atp- sq0csp-", _URL, 22),
    _row("shopify-token", "shpat_ shpca_ shppa_ shpss_", _ANYHEX, 32, "issuer"),
    _row("shippo-token", "shippo_live_ shippo_test_", _ANYHEX, 40),
    _row("easypost-key", "EZAK EZTK", _ALNUM, 54, most=54),
    _row("duffel-token", "duffel_live_ duffel_test_", f"={_URL}", 43),
    _row("flutterwave-key", "FLWSECK_TEST- FLWSECK-", f"{_ALNUM}-", 12),
    _row("razorpay-key", "rzp_live_ rzp_test_", _ALNUM, 14, "issuer"),
    _row("paddle-key", "pdl_live_apikey_ pdl_sdbx_apikey_", _WORD, 40),
    _row("xendit-key", "xnd_production_ xnd_development_", _ALNUM, 40),
    _row("polar-token", "polar_at_ polar_oat_ polar_pat_", _ALNUM, 20),
    _row("asaas-token", "$aact_", _URL, 20, digit=False),
    _row("square-token", "EAAA", _URL, 56, most=60),
    _row("checkout-key", "sk_ sk_sbox_", f"{_HEX}-", 36),
    _row("mercury-token", "secret-token:mercury_production_ mercury_production_", _WORD, 40),
    _row("braintree-token", "access_token$production$", f"{_HEX}$", 40, "issuer"),
    _row("plaid-token", "access-production- access-development- access-sandbox-", f"{_HEX}-", 32),
    # messages
    _row("slack-token", "xoxb- xoxp- xoxa- xoxe- xoxr- xoxs- xoxo- xoxc- xoxd- xapp-", f"{_ALNUM}%-", 10, "issuer"),
    _row("sendgrid-key", "SG.", f".{_URL}", 33, "issuer"),
    _row("brevo-key", "xkeysib- xsmtpsib-", f"{_ALNUM}-", 64),
    _row("mailgun-key", "key-", _HEX, 32, "issuer"),
    _row("nylas-key", "nyk_", _ALNUM, 60),
    _row("onesignal-key", "os_v2_app_ os_v2_org_", "a-z2-7", 100, "issuer"),
    _row("gcnotify-key", "gcntfy-", f"{_LOWER}_-", 70),
    _row("klaviyo-key", "pk_", _ALNUM, 34, most=34),
    _row("intercom-token", "dG9rO", f"{_BASE64}=", 50, "issuer", most=80),
    _row("lob-key", "live_ test_", _HEX, 35, "issuer", most=36),
    _row("dropbox-token", "sl.", f".{_URL}", 120),
    _row("mailersend-token", "mlsn.", _ALNUM, 30),
    _row("telnyx-key", "KEY01", _WORD, 40, "issuer", most=60),
    _row("twilio-key", "SK", _HEX, 32, "issuer", most=32),
    _row("facebook-token", "EAAM EAAC EAAB EAAG", _ALNUM, 100),
    _row("pinterest-token", "pina_", _ALNUM, 20),
    _row("frameio-token", "fio-u-", f"={_URL}", 64),
    _row("lichess-token", "lip_", _ALNUM, 16),
    _row("contentful-token", "CFPAT-", _URL, 40, "issuer"),
    _row("adobe-secret", "p8e-", _ALNUM, 32),
    _row("artifactory-key", "AKCp cmVmd", _ALNUM, 59, most=70),
    _row("typeform-token", "tfp_", f".={_URL}", 40, "issuer"),
    _row("hubspot-token", "pat-na1- pat-eu1-", f"{_HEX}-", 36, "issuer"),
    _row("onfido-token", "api_live. api_live_ca. api_live_us. api_sandbox. api_sandbox_ca. api_sandbox_us.", _URL, 20),
    _row("persona-key", "persona_production_ persona_sandbox_", f"{_LOWER}_-", 20),
    _row("proof-key", "prf_", _URL, 20),
    _row("rainforest-key", "apikey_ sbx_apikey_", _HEX, 60),
    _row("samsara-token", "samsara_api_", _ALNUM, 26),
    _row("midtrans-key", "Mid-server- SB-Mid-server-", _URL, 12),
    _row("intra42-secret", "s-s4t2ud- s-s4t2af-", _HEX, 64),
)
"""All rows. A service with keys of several shapes has several."""
