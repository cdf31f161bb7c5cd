"""Observe running entities: upserts and turn events for subscribers. Observation, never control."""

from typing import TYPE_CHECKING

from cantrip_actors.lazy_exports import export_lazily

if TYPE_CHECKING:
    from cantrip_actors.observe.batching import Batching as Batching
    from cantrip_actors.observe.delivery import FellBehind as FellBehind
    from cantrip_actors.observe.delivery import Upserts as Upserts
    from cantrip_actors.observe.delivery import UpsertSubscription as UpsertSubscription
    from cantrip_actors.observe.lines import add_context as add_context
    from cantrip_actors.observe.lines import export_line as export_line
    from cantrip_actors.observe.processor import Processor as Processor
    from cantrip_actors.observe.telemetry import Telemetry as Telemetry
    from cantrip_actors.observe.upserts import FinalResponse as FinalResponse
    from cantrip_actors.observe.upserts import ImageUpsert as ImageUpsert
    from cantrip_actors.observe.upserts import MessageUpsert as MessageUpsert
    from cantrip_actors.observe.upserts import Output as Output
    from cantrip_actors.observe.upserts import Parent as Parent
    from cantrip_actors.observe.upserts import ThinkingUpsert as ThinkingUpsert
    from cantrip_actors.observe.upserts import ToolCallUpsert as ToolCallUpsert
    from cantrip_actors.observe.upserts import TurnComplete as TurnComplete
    from cantrip_actors.observe.upserts import TurnError as TurnError
    from cantrip_actors.observe.upserts import TurnEvent as TurnEvent
    from cantrip_actors.observe.upserts import TurnStarted as TurnStarted
    from cantrip_actors.observe.upserts import Upsert as Upsert
    from cantrip_actors.observe.upserts import as_message as as_message
    from cantrip_actors.observe.upserts import fold as fold
    from cantrip_actors.observe.upserts import history as history
    from cantrip_actors.observe.upserts import standing as standing
else:
    __getattr__, __dir__ = export_lazily(__name__)
