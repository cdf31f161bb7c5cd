"""Exports of a loom: threads as JSON lines, chats, preference pairs, ATIF trajectories, an HTML page, and spending."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cantrip_actors.lazy_exports import export_lazily

if TYPE_CHECKING:
    from cantrip_actors.loom.export.atif import segments as segments
    from cantrip_actors.loom.export.atif import trajectory as trajectory
    from cantrip_actors.loom.export.chat import chat_jsonl as chat_jsonl
    from cantrip_actors.loom.export.conversation import conversation_of as conversation_of
    from cantrip_actors.loom.export.html import family as family
    from cantrip_actors.loom.export.html import html_page as html_page
    from cantrip_actors.loom.export.pairs import pairs_jsonl as pairs_jsonl
    from cantrip_actors.loom.export.spending import read_spending as read_spending
    from cantrip_actors.loom.export.thread import thread_jsonl as thread_jsonl
else:
    __getattr__, __dir__ = export_lazily(__name__)
