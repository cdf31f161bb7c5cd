"""Azure OpenAI: OpenAI's interfaces at the address of a resource, with a key or a token of Microsoft Entra.

The v1 interface takes a deployment where OpenAI takes a model. The classic one has the deployment in the address, an
`api-version` in the query, and speaks Chat Completions only. The name of a deployment does not tell its model. The
answers name the model, and have its price.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Final

from cantrip_actors.crystal.access import BearerToken, TokenAccess, import_extra
from cantrip_actors.crystal.families.chat import Chat
from cantrip_actors.crystal.families.responses import Responses
from cantrip_actors.terms.errors import CrystalError, ProviderError

SCOPE: Final = "https://cognitiveservices.azure.com/.default"


class AzureResponses(Responses):
    """A deployment, over the Responses API."""

    provider: ClassVar[str] = "azure"
    seller: ClassVar[str | None] = "azure"
    keys: ClassVar[tuple[str, ...]] = ("AZURE_OPENAI_API_KEY",)
    counts: ClassVar[bool] = False
    key_header: ClassVar[tuple[str, str]] = ("api-key", "")
    reasons: ClassVar[re.Pattern[str]] = re.compile("")  # a name does not tell; a model that does not refuses the field


class AzureChat(Chat):
    """A deployment, over Chat Completions."""

    provider: ClassVar[str] = "azure-chat"
    seller: ClassVar[str | None] = "azure"
    keys: ClassVar[tuple[str, ...]] = ("AZURE_OPENAI_API_KEY",)
    key_header: ClassVar[tuple[str, str]] = ("api-key", "")


def make_entra_access(credential: Any = None) -> TokenAccess:
    """Return the access of a `credential` of azure-identity, or of its `DefaultAzureCredential`."""
    credentials: list[Any] = [] if credential is None else [credential]

    def fetch() -> BearerToken:
        exceptions = import_extra("azure", "azure.core.exceptions")
        if not credentials:
            credentials.append(import_extra("azure", "azure.identity").DefaultAzureCredential())
        try:
            token = credentials[0].get_token(SCOPE)
        except exceptions.ClientAuthenticationError as error:
            raise CrystalError(
                f"azure: no credentials: {error}; set AZURE_OPENAI_API_KEY, or run `az login`"
            ) from error
        except exceptions.AzureError as error:
            raise ProviderError(f"azure: no token could be fetched: {error}", retryable=True) from error
        return BearerToken(token.token, float(token.expires_on))

    return TokenAccess("AZURE_OPENAI_AD_TOKEN", fetch)
