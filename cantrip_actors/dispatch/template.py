"""A contract to fill in: Markdown with a {VARIABLE} in each place. With all filled in, it can be parsed."""

from __future__ import annotations

TEMPLATE = """\
# Dispatch: {TITLE}

<!--
What is written here is frozen when it is dispatched. Progress, status and results go to the log.
Every {VARIABLE} has to be filled in. These rows may be added below: Decision Needed, Role (worker, loop, orchestrator),
Intent, Type, Source, Skill Chain, Gates, Wards, Budget Cap, Supersedes, Depth (minimal, standard, full),
Max Iterations, Review Cap, Dispatch (an id of your own); and the sections Outputs, Lessons and Steps.
-->

## Metadata

| Field | Value |
| --- | --- |
| Project | {PROJECT} |
| Repo | {REPO} |
| Priority | {PRIORITY} |
| Dispatched | {DATE} |
| Status | queued |
| Needs Approval | no |

## Objective

{OBJECTIVE}

### Acceptance Criteria

- [ ] {CRITERION}

### Scope Boundaries

- {NOT_ADDRESSED}

## Background

{BACKGROUND}

## Related Files

### Source Files

- `{SOURCE_FILE}` — {WHY_IT_MATTERS}

### Files Modified

## Technical Context

{TECHNICAL_CONTEXT}

## Tasks

1. {TASK}

## Verification Gate

{VERIFICATION}

## Progress
"""


def contract_template() -> str:
    """Return the template, as Markdown."""
    return TEMPLATE
