"""Exit codes by which a worker tells its launcher why it ended; 0 when it is done."""

from __future__ import annotations

MISTAKE = 1  # something its user has to mend: a new start would find it again
LOST_ANOTHER = 3  # another worker was lost; this one could have gone on
CRASHED = 70  # a failure that nobody foresaw (EX_SOFTWARE); with a traceback
YIELDED = 75  # saved its work and made room, to be started again (EX_TEMPFAIL)
