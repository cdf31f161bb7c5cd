"""The crystals of clouds, one function each: `bedrock:MODEL`, `vertex:MODEL` and `azure:DEPLOYMENT`.

They have the keyword arguments of other families (`constructors.py`). A key, from `api_key` or the environment, takes
precedence over the cloud's own credentials, which are found at the first query and renewed when they expire;
`credentials` are an object of the cloud's own library.
"""

from __future__ import annotations

from typing import Any, Literal, Unpack
from urllib.parse import quote

from cantrip_actors.crystal.access import Access, import_extra
from cantrip_actors.crystal.cache_points import parse_cache_points
from cantrip_actors.crystal.client import read_environment
from cantrip_actors.crystal.constructors import AddressedSettings, make_crystal
from cantrip_actors.crystal.families.azure import AzureChat, AzureResponses, make_entra_access
from cantrip_actors.crystal.families.bedrock import Bedrock, SignedAccess
from cantrip_actors.crystal.families.vertex import VertexClaude, VertexGemini, make_default_access
from cantrip_actors.crystal.provider import ProviderCrystal
from cantrip_actors.terms.arguments import check, check_kind, is_text
from cantrip_actors.terms.errors import InvalidCantrip


def bedrock(
    model: str,
    *,
    region: str | None = None,
    profile: str | None = None,
    credentials: Any = None,
    cache: Literal["5m", "1h"] | None = "5m",
    **settings: Unpack[AddressedSettings],
) -> ProviderCrystal:
    """Return a model of Amazon Bedrock, over Converse, by its id, the id of an inference profile, or an ARN.

    `region` is by default that of `AWS_REGION`, `AWS_DEFAULT_REGION` or the `profile`. `credentials` are botocore's or
    boto3's. Needs the extra `bedrock`.

    Raises InvalidCantrip for an invalid setting, and if no region is known.
    """
    for what, value in (("region", region), ("profile", profile)):
        check(value is None or is_text(value), f"bedrock: {what}", "a name", value, InvalidCantrip)
    import_extra("bedrock", "botocore.eventstream")
    region = region or read_environment("AWS_REGION", "AWS_DEFAULT_REGION")
    region = region or import_extra("bedrock", "botocore.session").Session(profile=profile).get_config_variable(
        "region"
    )
    if not region:
        raise InvalidCantrip(f'bedrock "{model}": no region: set AWS_REGION, or pass region="us-east-1"')

    def find() -> Any:
        if credentials is not None:
            return credentials
        return import_extra("bedrock", "botocore.session").Session(profile=profile).get_credentials()

    top = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    if settings.get("base_url") is None:
        own = f"https://bedrock-runtime.{region}.{top}"
        settings["base_url"] = read_environment("AWS_ENDPOINT_URL_BEDROCK_RUNTIME") or own
    control = read_environment("AWS_ENDPOINT_URL_BEDROCK") or f"https://bedrock.{region}.{top}"
    s3 = read_environment("AWS_ENDPOINT_URL_S3") or f"https://s3.{region}.{top}"
    access = SignedAccess(region, find, control=control.rstrip("/"), s3=s3.rstrip("/"))
    return make_crystal(Bedrock, model, settings, access=access, cache=parse_cache_points(cache, "bedrock"))


def vertex(
    model: str,
    *,
    project: str | None = None,
    location: str | None = None,
    credentials: Any = None,
    cache: Literal["5m", "1h"] | None = "5m",
    **settings: Unpack[AddressedSettings],
) -> ProviderCrystal:
    """Return a Gemini or Claude model of Vertex AI. `cache` is for Claude.

    `project` is that of `GOOGLE_CLOUD_PROJECT`, and `location` that of `GOOGLE_CLOUD_LOCATION`, else "global".
    `credentials` are google-auth's, the application default ones if left out. Needs the extra `vertex`.

    Raises InvalidCantrip for an invalid setting, and if no project is known.
    """
    import_extra("vertex", "google.auth")
    project = project or read_environment("GOOGLE_CLOUD_PROJECT")
    location = location or read_environment("GOOGLE_CLOUD_LOCATION") or "global"
    if not project:
        raise InvalidCantrip(f'vertex "{model}": no project: set GOOGLE_CLOUD_PROJECT, or pass project="…"')
    fits = isinstance(model, str) and model.startswith(("claude", "gemini"))
    check(fits, "vertex", "a Gemini or Claude model, such as gemini-3.1-pro-preview", model, InvalidCantrip)
    if settings.get("base_url") is None:
        host = "aiplatform.googleapis.com" if location == "global" else f"{location}-aiplatform.googleapis.com"
        settings["base_url"] = f"https://{host}/v1/projects/{project}/locations/{location}"
    access: Access = make_default_access(credentials)
    if model.startswith("claude"):
        return make_crystal(VertexClaude, model, settings, access=access, cache=parse_cache_points(cache, "vertex"))
    return make_crystal(VertexGemini, model, settings, access=access)


def azure(
    deployment: str,
    *,
    endpoint: str | None = None,
    api_version: str | None = None,
    chat: bool = False,
    credentials: Any = None,
    **settings: Unpack[AddressedSettings],
) -> ProviderCrystal:
    """Return a deployment of Azure OpenAI: over the Responses API or, with `chat=True`, over Chat Completions.

    `endpoint` is that of `AZURE_OPENAI_ENDPOINT`, such as `https://my-resource.openai.azure.com`. With `api_version`,
    or `OPENAI_API_VERSION`, queries use the classic interface, which is Chat Completions. `credentials` is
    azure-identity's; without one and without a key, its `DefaultAzureCredential`. A token needs the extra `azure`.

    Raises InvalidCantrip for an invalid setting, and if no endpoint is known.
    """
    check_kind("azure: endpoint", endpoint, str | None, "a URL as a text", InvalidCantrip)
    endpoint = (endpoint or read_environment("AZURE_OPENAI_ENDPOINT") or "").rstrip("/")
    api_version = api_version or read_environment("OPENAI_API_VERSION")
    if settings.get("base_url") is None:
        if not endpoint.startswith(("http://", "https://")):
            raise InvalidCantrip(
                f'azure "{deployment}": endpoint: expected https://RESOURCE.openai.azure.com: set AZURE_OPENAI_ENDPOINT'
            )
        classic = f"{endpoint}/openai/deployments/{quote(deployment, safe='')}?api-version={api_version}"
        settings["base_url"] = classic if api_version else f"{endpoint}/openai/v1"
    family = AzureChat if chat or api_version else AzureResponses
    return make_crystal(family, deployment, settings, access=make_entra_access(credentials))
