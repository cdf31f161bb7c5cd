"""Redaction: find secrets in texts, values, streams and log lines, and replace them. Pure functions."""

from typing import TYPE_CHECKING

from cantrip_actors.lazy_exports import export_lazily

if TYPE_CHECKING:
    from cantrip_actors.redact.logs import log_processor as log_processor
    from cantrip_actors.redact.logs import redact_error as redact_error
    from cantrip_actors.redact.patterns import COMMON as COMMON
    from cantrip_actors.redact.patterns import SecretPattern as SecretPattern
    from cantrip_actors.redact.redactor import Redactor as Redactor
    from cantrip_actors.redact.stream import RedactedStream as RedactedStream
    from cantrip_actors.redact.urls import render_url as render_url
else:
    __getattr__, __dir__ = export_lazily(__name__)
