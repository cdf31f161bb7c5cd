"""One program for each library, as small as its documentation would write it.

A program runs in the environment of its library and imports nothing of this project; `work.py` measures it.
"""
