"""Google's Vertex AI: Gemini and Claude at Google's addresses, with the credentials of a project.

Requests are those of the Gemini API and the Messages API; only the addresses and the place of Claude's model differ. A
request has an access token of the application default credentials (`google-auth`): a service account, a user's login
with gcloud, an identity of another cloud, or the identity of the machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC
from typing import Any, ClassVar, Final

from cantrip_actors.crystal.access import BearerToken, TokenAccess, import_extra
from cantrip_actors.crystal.families.anthropic import COUNTED, Anthropic
from cantrip_actors.crystal.families.google import Google
from cantrip_actors.crystal.images import Takes
from cantrip_actors.crystal.provider import Counting, ProviderQuery
from cantrip_actors.terms.errors import CrystalError, ProviderError

SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
VERSION: Final = "vertex-2023-10-16"

KEYS: Final = ("GOOGLE_OAUTH_ACCESS_TOKEN",)
"""A ready token, which is never renewed."""


class VertexGemini(Google):
    """Gemini models of a project."""

    provider: ClassVar[str] = "vertex"
    keys: ClassVar[tuple[str, ...]] = KEYS
    key_header: ClassVar[tuple[str, str]] = ("authorization", "Bearer ")
    takes: ClassVar[Takes] = replace(Google.takes, ids=frozenset())  # Vertex AI has no files of the Gemini API

    @property
    def path(self) -> str:
        """Return the path below the project and the location."""
        return f"/publishers/google{super().path}"

    @property
    def counting(self) -> Counting | None:
        """The fields are those of the request itself."""
        fields = ("contents", "systemInstruction", "tools", "generationConfig")
        return Counting(f"{self.path.partition(':')[0]}:countTokens", fields, "totalTokens")


class VertexClaude(Anthropic):
    """Claude models of a project."""

    provider: ClassVar[str] = "vertex"
    is_strict: ClassVar[bool] = False
    seller: ClassVar[str | None] = "google"
    keys: ClassVar[tuple[str, ...]] = KEYS
    key_header: ClassVar[tuple[str, str]] = ("authorization", "Bearer ")
    fixed: ClassVar[Mapping[str, str]] = {}
    # Google fetches no URL for Claude, and stores none of its files
    takes: ClassVar[Takes] = replace(Anthropic.takes, addresses=False, fetched=(), ids=frozenset())

    @property
    def path(self) -> str:
        """Return the path, which contains the model; the body does not."""
        return f"/publishers/anthropic/models/{self.model}:streamRawPredict"

    @property
    def counting(self) -> Counting | None:
        """One address counts for all models."""
        path = "/publishers/anthropic/models/count-tokens:rawPredict"
        return Counting(path, COUNTED, "input_tokens", lambda body: {"model": self.model, **body})

    def write_fields(self, query: ProviderQuery, system: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the fields of the Messages API, and the version, which is a header there."""
        yield "", {"anthropic_version": VERSION}
        for parameter, fields in super().write_fields(query, system):
            yield parameter, {name: value for name, value in fields.items() if name != "model"}


def make_default_access(credentials: Any = None) -> TokenAccess:
    """Return the access of `credentials` of google-auth, or of the application default credentials."""
    fetched: list[Any] = [] if credentials is None else [credentials]

    def fetch() -> BearerToken:
        auth, exceptions = import_extra("vertex", "google.auth"), import_extra("vertex", "google.auth.exceptions")
        requests, transport = (
            import_extra("vertex", "requests"),
            import_extra("vertex", "google.auth.transport.requests"),
        )
        try:
            with requests.Session() as session:
                request = transport.Request(session)
                if not fetched:
                    fetched.append(auth.default(scopes=[SCOPE], request=request)[0])
                own = fetched[0]
                own.refresh(request)
        except exceptions.DefaultCredentialsError as error:
            raise CrystalError(
                f"vertex: no Google credentials: {error}; run `gcloud auth application-default login`, or set "
                "GOOGLE_APPLICATION_CREDENTIALS"
            ) from error
        except exceptions.GoogleAuthError as error:
            again = True if isinstance(error, exceptions.TransportError) else bool(getattr(error, "retryable", False))
            raise ProviderError(f"vertex: no access token could be fetched: {error}", retryable=again) from error
        project = getattr(own, "quota_project_id", None)
        until = own.expiry.replace(tzinfo=UTC).timestamp() if own.expiry is not None else float("inf")
        return BearerToken(own.token, until, {"x-goog-user-project": project} if project else {})

    return TokenAccess("GOOGLE_OAUTH_ACCESS_TOKEN", fetch)
