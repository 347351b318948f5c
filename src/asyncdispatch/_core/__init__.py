"""The dispatcher as a pure state machine: no clock, no event loop, no randomness, no logging, no I/O.

Time is a parameter: `now` in integer nanoseconds. Every step decides at once and leaves its uncommon consequences in
lists (`settled`, `stops`, `reads_wanted`) that the shell empties after it.
"""
