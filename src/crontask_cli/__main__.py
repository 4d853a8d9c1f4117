"""``python -m crontask_cli`` is the ``crontask`` command."""

from __future__ import annotations

from crontask_cli.main import main

main()
