"""The loop of an entity, as pure functions over its records.

Rules of this package: everything that decides what an entity does next is here, and nothing here waits, measures or
invents anything. There is no await, no clock and no random number; ids and times come in with the `Moment`.

Theory of operation
-------------------

A `Plan` is what stays fixed while an entity is loaded: its cantrip, its gates, its wards. A `State` is where it stands,
the fold of its log. `advance` answers an event with a `Step`: the records to append to the loom, then the one action to
carry out. The driver (the entity's actor, or a test) appends the records before it carries out the action (LOOM-1), and
feeds the result of the action back as the next event.

A step has three parts. `accept` says which records the event becomes. `evolve` folds each of them into the state; it is
the only code that changes a state. `due` says, from the state alone, which record or action comes next, and is asked
again after each record that it makes. `resume` is the last two parts over a folded log, so a restarted entity does what
the running one would have done:

    phase       event      next phase   action   when
    NEW, IDLE   Begin      ASKING       Ask      an intent is given: the first, or a further one by `send` (INTENT-1)
    NEW, IDLE   Begin      OVER         Finish   a budget is used up already
    NEW, IDLE   Begin      ASKING       Pause    the budget of the day or month is used up: the next one is waited for
    NEW, IDLE   Begin      ASKING       Consult  a budget is used up, and a person may grant more
    IDLE        Begin      ASKING       Remember a fold is due, and a summary or the companion says what to keep
    ASKING      Replied    ACTING       Run      the next call of the utterance is a gate's
    ASKING      Replied    ACTING       Contact  the next call sends a message to another entity
    ASKING      Replied    WAITING      Spawn    it is call_agent: the part before it is committed first (LOOM-8)
    ASKING      Replied    ASKING       Ask      no call is left to run, and `done` was not among them
    ASKING      Replied    ASKING       Remember the same, and a fold is due
    ASKING      Replied    IDLE, OVER   Finish   `done`; text only, where that ends it (D-004); a ward (LOOP-4)
    ASKING      Replied    OVER         Finish   a budget was used up meanwhile
    ASKING      Posted     ASKING       Collect  the crystal took the query and will answer later
    ASKING      Remembered ASKING       Ask      the fold is made, and the text that was kept stands in its place
    ASKING      Remembered OVER         Finish   the summary used a budget up
    ASKING      Remembered ASKING       Pause    the same, and the next period is waited for
    ASKING      Remembered ASKING       Consult  the same, and a person may grant more
    ASKING      Replied    ASKING       Pause    the budget of the day or month is used up
    ASKING      Replied    ASKING       Consult  a budget is used up, and a person may grant more
    ASKING      Elapsed    ASKING       Ask      the next period has begun
    ASKING      Elapsed    ASKING       Remember the same, and a fold is due
    ASKING      Decide     ASKING       Ask      a person has granted more, or the next period has begun
    ASKING      Decide     ASKING       Remember the same, and a fold is due
    ASKING      Decide     ASKING       Consult  the same, but not enough
    ASKING      Decide     IDLE, OVER   Finish   a person has not
    ASKING      Failed     IDLE, OVER   Finish   the crystal failed for good
    ASKING      Failed     ASKING       Ask      the context was too long: it is folded, and the query asked once more
    ASKING      Failed     ASKING       Remember the same, and a summary or the companion says what to keep
    ASKING      Steer      ASKING       Ask      a message is put in before the query
    ASKING      Steer      ASKING       Remember the same, and a fold is due
    ASKING      Steer      ASKING       Consult  a person still has to grant more
    ASKING      Interrupt  IDLE, OVER   Finish   the episode is ended from outside between two turns
    ASKING      Stopped    IDLE, OVER   Finish   a deadline, a budget, a cancellation; IDLE if an episode timed out
    ASKING      Replied    ACTING       Consult  a person decides about the next call, or answers a question
    ACTING      Observed   as Replied            the observation is recorded; then the utterance continues
    ACTING      Observed   COMPUTING    Answer   the program continues with the gate's answer
    ACTING      Decide     as Replied            the call is carried out, or its observation is the decision
    ACTING      Decide     ACTING       Compute  after a restart the program runs again up to the call
    ACTING      Decide     COMPUTING    Answer   likewise, and the program continues
    ACTING      Inquired   ACTING       Consult  the gate that runs asks a person before it can answer
    ACTING      Questioned ACTING       Await    an `ask` waits for the other entity's episode
    ACTING      Interrupt  IDLE, OVER   Finish   the turn is committed as it stands
    ACTING      Stopped    IDLE, OVER   Finish   likewise
    WAITING     Returned   as Replied            the children's results are the observation
    WAITING     Returned   COMPUTING    Answer   the program continues with them
    WAITING     Returned   WAITING      Run      the steps that are wrapped around the delegation see them first
    WAITING     Observed   as Replied            those steps have passed the observation on
    WAITING     Observed   COMPUTING    Answer   likewise, to the program
    WAITING     Interrupt  IDLE, OVER   Finish   the turn is committed as it stands
    WAITING     Stopped    IDLE, OVER   Finish   likewise
    ASKING      Replied    COMPUTING    Compute  the utterance is a program, in a code circle
    COMPUTING   Called     ACTING       Run      the program calls a gate
    COMPUTING   Called     ACTING       Consult  a person decides about the call, or answers a question
    COMPUTING   Called     COMPUTING    Run      the gate may be run again, or steps come before the call
    COMPUTING   Called     COMPUTING    Contact  the program sends a message to another entity
    COMPUTING   Called     WAITING      Spawn    it calls call_agent; the part before it is committed first
    COMPUTING   Called     COMPUTING    Answer   it calls `done`, or what it may not: it continues with the answer
    COMPUTING   Observed   COMPUTING    Answer   the program continues with the answer of a gate that may be run again
    COMPUTING   Observed   WAITING      Spawn    the steps before a delegation let it pass
    COMPUTING   Observed   COMPUTING    Contact  the steps before a message let it pass
    COMPUTING   Observed   ACTING       Consult  the steps before a call let it pass, and a person decides about it
    COMPUTING   Observed   COMPUTING    Run      the steps after a message see its observation
    COMPUTING   Inquired   ACTING       Consult  likewise, of a gate that may be run again
    COMPUTING   Questioned ACTING       Await    an `ask` waits for the other entity's episode
    COMPUTING   Computed   ASKING       Ask      the program ended, failed, or exceeded a limit
    COMPUTING   Computed   ASKING       Remember the same, and a fold is due
    COMPUTING   Computed   ASKING       Pause    the budget of the day or month is used up
    COMPUTING   Computed   ASKING       Consult  a budget is used up, and a person may grant more
    COMPUTING   Computed   IDLE, OVER   Finish   the same, and it had called `done`; or a ward
    COMPUTING   Interrupt  IDLE, OVER   Finish   the program is ended, and the turn committed as it stands
    COMPUTING   Stopped    IDLE, OVER   Finish   likewise
    ACTING      Called     COMPUTING    Answer   after a restart: the outcome of the gate's call is unknown
    ACTING      Called     ACTING       Await    after a restart: it still waits for the other entity's episode
    ACTING      Called     ACTING       Run      after a restart: a person has decided about the call
    ACTING      Called     WAITING      Spawn    after a restart, where the delegation had just begun
    WAITING     Called     WAITING      Spawn    after a restart: it still waits for the children
    IDLE        Stopped    OVER         Finish   nothing is lost
    IDLE        Compact    IDLE         Remember the fold that was asked for, once a text for it is found
    IDLE        Compact    IDLE         Finish   the fold is made
    IDLE        Remembered IDLE         Finish   the same, with the text
    ASKING      Compact    ASKING       Remember the fold that was asked for comes before the query
    ASKING      Compact    ASKING       Ask      the same, without a text

A long-lived entity waits in IDLE for its next intent; a one-shot entity is OVER. A message that comes meanwhile is
recorded without a step (`note`), and so is an undo, after which the log is folded again. Calls run one by one in the
order of the utterance (CIRCLE-7); `done` ends it and the rest is skipped (LOOP-3, D-003). A call that cannot be carried
out, with an unknown gate, a bad argument or a child that is not allowed, becomes an error observation at once, without
an action (CIRCLE-5, CIRCLE-6).

Steps that wrap `done`, a delegation or a message run like a gate, before the call that they wrap: first the action Run,
then the end, the Spawn or the Contact, as if that call came next. A refusal is the observation of the call.

If a call needs children, the turn is split in two. The part before is committed, so that the children's turns have a
turn to follow. The rest, beginning with the delegation's own observation, is a continuation: the next turn of the loom,
with the same utterance. The context shows one utterance.

Wards count utterances: a continuation is a turn of the loom but no new utterance (reading 2). The turn of the last
utterance that a ward allows is committed as truncated (reading 3).
"""

from __future__ import annotations

from cantrip_actors.machine.accept import UNKNOWN, accept, is_unknown, refuse
from cantrip_actors.machine.actions import Action, Answer, Run, Step
from cantrip_actors.machine.due import due
from cantrip_actors.machine.events import Event, Moment
from cantrip_actors.machine.evolve import complete, evolve, evolve_transient, fold
from cantrip_actors.machine.project import is_of_life
from cantrip_actors.machine.state import Phase, Plan, State, Transient
from cantrip_actors.records.records import Record


def advance(plan: Plan, state: State, live: Transient, moment: Moment, event: Event) -> Step:
    """Fold an event into the state, and return the next step. Changes `state` and `live` in place.

    Raises as `accept`, before anything has changed.
    """
    return _settle(plan, state, live, moment, note(plan, state, live, moment, event))


def note(plan: Plan, state: State, live: Transient, moment: Moment, event: Event) -> list[Record]:
    """Fold an event into the state and return its records, without a next action.

    Use it for a message that arrives while the entity waits for an intent. Raises as `accept`.
    """
    records = [complete(plan, state, live, record) for record in accept(plan, state, live, moment, event)]
    fold(plan.shape, records, state)
    for record in records:
        evolve_transient(live, record, moment)
    return records


def resume(plan: Plan, state: State, live: Transient, moment: Moment) -> Step | None:
    """Return the next step of an entity whose `state` was folded from its log; None if it waits for an intent.

    `live` is a new Transient; its fresh id must be unused and differ from the moment's.
    """
    live.began = live.mark = moment.now
    if state.phase in (Phase.NEW, Phase.OVER) or (state.phase is Phase.IDLE and plan.lasting and not is_of_life(state)):
        return None
    records: list[Record] = []
    turn = state.turn
    if turn.program is not None:
        live.is_rebuilt = False  # its sandbox is gone: first the program runs again to its last call
    elif turn.running and is_unknown(plan, state, call := turn.calls[turn.next_call]):
        records.append(refuse(plan, state, live, moment, call, UNKNOWN))
        evolve(plan.shape, state, records[0])
    return _settle(plan, state, live, moment, records)


def _settle(plan: Plan, state: State, live: Transient, moment: Moment, records: list[Record]) -> Step:
    """Fold the due records into the state until an action is due."""
    action: Action | None = None
    while action is None:
        what = due(plan, state, live, moment)
        if type(what) is Step:  # a record, and the action that comes after it
            (record,), action = what.records, what.action
            record = complete(plan, state, live, record)
        elif isinstance(what, Action):
            if type(what) is Run and what.checks:
                live.wrapping = "before"
            elif type(what) is Answer:
                live.call = None
            return Step(records, what)
        else:
            record = complete(plan, state, live, what)
        records.append(record)
        evolve(plan.shape, state, record)
        evolve_transient(live, record, moment)
    return Step(records, action)
