"""The campaign of random cancellations: whatever is cancelled, and whenever, nothing leaks and nothing happens later.

`world.py` has the entities and the journal of their effects, `acts.py` what is cancelled, `campaign.py` runs an example
and picks examples at random, `laws.py` says what has to hold, `command.py` is `python -m conformance cancel`.
"""
