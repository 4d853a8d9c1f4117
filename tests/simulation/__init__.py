"""The whole engine under faults, on virtual time; a seed replays a history exactly.

``python -m tests.simulation --seed 7 --verbose`` shows one history, ``--seeds 5000`` runs many.
"""

from __future__ import annotations
