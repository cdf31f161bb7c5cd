"""Projections: facts that are computed from records, apart from the state itself (`evolve.py`).

Only this package and `evolve.py` distinguish the kinds of records (`tools/record_kinds.py` checks it). Each file
computes one group of facts: about a single record, an entity's status, the outcome of an episode, the turns, the
conversation, and statistics. `stream/reading.py` makes the events for observers.
"""

from typing import TYPE_CHECKING

from cantrip_actors.lazy_exports import export_lazily

if TYPE_CHECKING:
    from cantrip_actors.machine.project.client_calls import ClientCall as ClientCall
    from cantrip_actors.machine.project.client_calls import Round as Round
    from cantrip_actors.machine.project.client_calls import collect_texts as collect_texts
    from cantrip_actors.machine.project.client_calls import cut_round as cut_round
    from cantrip_actors.machine.project.client_calls import find_client_call as find_client_call
    from cantrip_actors.machine.project.client_calls import read_round as read_round
    from cantrip_actors.machine.project.entity import CantripRef as CantripRef
    from cantrip_actors.machine.project.entity import find_cantrip as find_cantrip
    from cantrip_actors.machine.project.entity import find_dependencies as find_dependencies
    from cantrip_actors.machine.project.entity import find_episode as find_episode
    from cantrip_actors.machine.project.entity import find_first_intent as find_first_intent
    from cantrip_actors.machine.project.entity import find_header_at as find_header_at
    from cantrip_actors.machine.project.entity import find_header_in_force as find_header_in_force
    from cantrip_actors.machine.project.entity import find_last_metadata as find_last_metadata
    from cantrip_actors.machine.project.entity import find_outcome as find_outcome
    from cantrip_actors.machine.project.entity import find_refusal as find_refusal
    from cantrip_actors.machine.project.entity import find_result_text as find_result_text
    from cantrip_actors.machine.project.entity import find_settled_at as find_settled_at
    from cantrip_actors.machine.project.entity import find_status as find_status
    from cantrip_actors.machine.project.entity import find_times as find_times
    from cantrip_actors.machine.project.entity import fold_state as fold_state
    from cantrip_actors.machine.project.entity import get_header as get_header
    from cantrip_actors.machine.project.entity import has_taken as has_taken
    from cantrip_actors.machine.project.entity import list_children as list_children
    from cantrip_actors.machine.project.entity import list_first_turns as list_first_turns
    from cantrip_actors.machine.project.entity import list_intents as list_intents
    from cantrip_actors.machine.project.entity import list_turns_quoting as list_turns_quoting
    from cantrip_actors.machine.project.fork import make_fork_state as make_fork_state
    from cantrip_actors.machine.project.outcome import Status as Status
    from cantrip_actors.machine.project.outcome import get_outcome as get_outcome
    from cantrip_actors.machine.project.outcome import get_status as get_status
    from cantrip_actors.machine.project.outcome import is_end_recorded as is_end_recorded
    from cantrip_actors.machine.project.outcome import is_of_life as is_of_life
    from cantrip_actors.machine.project.outcome import show_status as show_status
    from cantrip_actors.machine.project.record import ASIDES as ASIDES
    from cantrip_actors.machine.project.record import NOTED as NOTED
    from cantrip_actors.machine.project.record import EntityStanding as EntityStanding
    from cantrip_actors.machine.project.record import Life as Life
    from cantrip_actors.machine.project.record import advance as advance
    from cantrip_actors.machine.project.record import as_forgotten as as_forgotten
    from cantrip_actors.machine.project.record import as_header as as_header
    from cantrip_actors.machine.project.record import as_intent as as_intent
    from cantrip_actors.machine.project.record import as_steered as as_steered
    from cantrip_actors.machine.project.record import begin_standing as begin_standing
    from cantrip_actors.machine.project.record import compute_life as compute_life
    from cantrip_actors.machine.project.record import get_committed_turn as get_committed_turn
    from cantrip_actors.machine.project.record import get_named_turn as get_named_turn
    from cantrip_actors.machine.project.record import get_sender as get_sender
    from cantrip_actors.machine.project.record import get_time as get_time
    from cantrip_actors.machine.project.record import get_turn_number as get_turn_number
    from cantrip_actors.machine.project.record import is_for_lease_holder as is_for_lease_holder
    from cantrip_actors.machine.project.record import sum_usage as sum_usage
    from cantrip_actors.machine.project.requests import Verdict as Verdict
    from cantrip_actors.machine.project.requests import as_answer as as_answer
    from cantrip_actors.machine.project.requests import find_decision as find_decision
    from cantrip_actors.machine.project.requests import find_delivery as find_delivery
    from cantrip_actors.machine.project.requests import find_last_beginning as find_last_beginning
    from cantrip_actors.machine.project.requests import find_open_request as find_open_request
    from cantrip_actors.machine.project.requests import measure_waited as measure_waited
    from cantrip_actors.machine.project.requests import read_last_reply as read_last_reply
    from cantrip_actors.machine.project.spending import list_records_of_period as list_records_of_period
    from cantrip_actors.machine.project.spending import list_started_gates as list_started_gates
    from cantrip_actors.machine.project.spending import list_usage_by_intent as list_usage_by_intent
    from cantrip_actors.machine.project.spending import list_usage_by_time as list_usage_by_time
    from cantrip_actors.machine.project.turns import TurnReader as TurnReader
    from cantrip_actors.machine.project.turns import begins_inside as begins_inside
    from cantrip_actors.machine.project.turns import collect_rewards as collect_rewards
    from cantrip_actors.machine.project.turns import find_cut_utterance as find_cut_utterance
    from cantrip_actors.machine.project.turns import find_turn_in_force as find_turn_in_force
    from cantrip_actors.machine.project.turns import get_reward_key as get_reward_key
    from cantrip_actors.machine.project.turns import list_finished_calls as list_finished_calls
    from cantrip_actors.machine.project.turns import list_started_calls as list_started_calls
    from cantrip_actors.machine.project.turns import read_entries as read_entries
    from cantrip_actors.machine.project.turns import read_turns as read_turns
    from cantrip_actors.machine.project.turns import render_utterance as render_utterance
    from cantrip_actors.machine.project.turns import split_asides as split_asides
    from cantrip_actors.machine.project.undone import cut_intents as cut_intents
    from cantrip_actors.machine.project.undone import drop_undone as drop_undone
    from cantrip_actors.machine.project.undone import fold_log as fold_log
    from cantrip_actors.machine.project.undone import has_undone as has_undone
else:
    __getattr__, __dir__ = export_lazily(__name__)
