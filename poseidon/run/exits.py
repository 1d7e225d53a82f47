"""Exit codes by which a worker tells its launcher why it ended: 0 when it is done, 1 for a mistake of its user's."""

from __future__ import annotations

LOST_ANOTHER = 3  # another worker was lost; this one could have gone on
YIELDED = 75  # saved its work and made room, to be started again (EX_TEMPFAIL)
