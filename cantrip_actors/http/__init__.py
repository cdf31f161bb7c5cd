"""`cantrip serve`: entities over HTTP, with server-sent events, and OpenAI's API over the same entities.

`serve` runs a service until a signal comes; `Service` and `make_app` put it into an application of your own, on any
ASGI server, around a runtime that you have opened.
"""

try:
    from cantrip_actors.http.addresses import CannotServe
    from cantrip_actors.http.app import make_app
    from cantrip_actors.http.calls import HttpCall, JsonAnswer
    from cantrip_actors.http.extension import ServiceExtension, list_scopes
    from cantrip_actors.http.limits import ServiceLimits
    from cantrip_actors.http.problems import Problem, answer_error
    from cantrip_actors.http.server import Ready, ServiceSettings, serve
    from cantrip_actors.http.service import Service
    from cantrip_actors.http.table import ApiRoute
    from cantrip_actors.http.token import Token
    from cantrip_actors.http.tokens import InvalidTokens, Tokens, add_token
except ModuleNotFoundError as error:
    if str(error.name).startswith("cantrip_actors."):
        raise
    raise ModuleNotFoundError(
        f"cantrip_actors.http needs {error.name}: pip install 'cantrip-actors[serve]'", name=error.name
    ) from error

__all__ = [
    "ApiRoute",
    "CannotServe",
    "HttpCall",
    "InvalidTokens",
    "JsonAnswer",
    "Problem",
    "Ready",
    "Service",
    "ServiceExtension",
    "ServiceLimits",
    "ServiceSettings",
    "Token",
    "Tokens",
    "add_token",
    "answer_error",
    "list_scopes",
    "make_app",
    "serve",
]
