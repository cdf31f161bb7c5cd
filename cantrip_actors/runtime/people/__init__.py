"""Requests that wait for people: approvals, questions, elicitations, and the timers of those that expire."""
