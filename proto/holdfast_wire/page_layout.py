"""Where is each stamp of a rank in the page that it shares with its supervisor?

The page is one memfd of PAGE_BYTES. The supervisor creates and seals it and passes it at hello. It is an array of
aligned signed 64-bit words in native byte order, each written with one store. The supervisor writes WORD_LAYOUT and
WORD_LEASE_UNTIL_NS, only the rank's own process writes all others. Times are CLOCK_MONOTONIC nanoseconds unless said
otherwise; 0 means "never" or "closed".

The writer stores in this order, so that a reader sees a truthful state at any instant:
- open a section: its slot := now. Close: OUT_OF_SECTION_SINCE_NS := now, then its slot := 0.
- a step opens: STEPS_SINCE_FIRST and FIRST_STEP_SEEN before its slot.

A tally packs into one word, written by one store, how often a section was closed and for how long it was open in all.
Both start at 0 in each page and wrap around, so compare two readings: the difference is right if the section was closed
fewer than 2^17 times between them and was open for less than 2^46 ns (19 h). Older clients leave all tallies 0.
"""

from __future__ import annotations

PAGE_BYTES = 4096
PAGE_WORDS = PAGE_BYTES // 8

LAYOUT_VERSION = 1
LAYOUT_UNSTATED = 1  # that of a worker which leaves the word 0, in the pages of auto_heartbeat_slots.py

WORD_LAYOUT = 0  # LAYOUT_VERSION, written by the supervisor; in the pages of auto_heartbeat_slots.py by the worker
WORD_INITIALISED_NS = 1  # init_workload_monitoring() of this connection; starts the initial limits
WORD_HEARTBEAT_NS = 2  # last send_heartbeat()
WORD_HEARTBEATS = 3  # how many were sent
WORD_OUT_OF_SECTION_SINCE_NS = 4  # last moment at which the last open section closed (or init)
WORD_FIRST_STEP_SEEN = 5  # 1 once the section "step" was opened in this cycle
WORD_STEPS_SINCE_FIRST = 6  # training iteration minus the cycle's first one; drives the warm-up limit

# The in-process Wrapper. At each tick, its watchdog checks if the main thread has executed bytecode since the last.
WORD_TICK_NS = 7  # the last tick; the next is due WORD_TICK_INTERVAL_NS later
WORD_TICK_INTERVAL_NS = 8
WORD_PENDING_SINCE_NS = 9  # since this tick, the main thread has executed nothing; 0: it had at the last tick
WORD_PING_NS = 10  # last ping(); counts only if it is younger than WORD_WATCH_SINCE_NS
WORD_WATCH = 11  # one of the WATCH_ values
WORD_WATCH_SINCE_NS = 12  # silence before this moment does not count; written before WORD_WATCH

WORD_USE = 13  # one of the USE_ values; a supervisor that got the page from another one judges only a current page

# Until when no other node takes the place of this one, so the rank may replace what the job has written: a time on
# CLOCK_BOOTTIME, which counts while the machine is suspended, or one of the LEASE_ values.
WORD_LEASE_UNTIL_NS = 14

# How long the main thread has executed nothing at the most, of silences that are over; only in the pages of
# auto_heartbeat_slots.py.
WORD_SILENCE_LONGEST_NS = 15

LEASE_UNKNOWN = 0  # an older supervisor, which grants none
LEASE_ENDED = 1  # a time that is over
LEASE_UNBOUNDED = (1 << 63) - 1  # a time that never comes: no other node can take the place of this one

WATCH_OFF = 0  # no call, a wait inside Holdfast, or disable_hang_protection()
WATCH_ON = 1  # soft and hard timeouts apply
WATCH_UNWINDING = (
    2  # since WORD_WATCH_SINCE_NS, the main thread should reach the Wrapper: only the hard timeout applies
)

USE_UNKNOWN = 0  # nobody writes here yet, or an older client does
USE_CURRENT = 1  # the rank's stamps go here, also while it has no connection
USE_LEFT = 2  # they go to the page of a later connection, or the rank has ended its monitoring

SECTION_SLOTS_START = 64
SECTION_SLOTS_MAX = 256  # slot i holds the opening time of the i-th monitored section of Welcome.sections
SECTION_NAME_CHARACTERS_MAX = 256

SECTION_TALLIES_START = 320
SECTION_TALLIES_MAX = PAGE_WORDS - SECTION_TALLIES_START  # the i-th belongs to slot i; later slots have none
WORD_NO_TALLY = 63  # receives the tallies of slots that have none; never read

TALLY_TIME_BITS = 46  # the lower bits hold the open time in ns, the upper bits the count
TALLY_ONE = 1 << TALLY_TIME_BITS  # adds one close
TALLY_MASK = (1 << 63) - 1
