"""The texts a model reads besides the tools: the server's instructions and the scheduling guide."""

from __future__ import annotations

from importlib.resources import files

__all__ = ["INSTRUCTIONS", "guide"]

INSTRUCTIONS = """\
crontask runs work of AI agents later: once, by cron, or every so often.
- Relative times ("in 10 minutes"): send delay_seconds; do no clock arithmetic.
- Times without an offset, and cron, are read in timezone; its default and the server's clock are
  in get_scheduler_info. Check the next fires in each answer, or beforehand with preview_schedule.
- task_content must stand alone: each fire is a new conversation. Say what to do, not when, with
  every parameter, identity (rts_name) and destination (push_target) in it.
- Give a task_key of your own: repeating a create with it is safe and makes no second task.
- Called by crontask? Do the work, do not schedule it again, and end with report_task_result.
- Errors name the field, a hint and an example that works: correct it and call again.
The resource crontask://guide/schedules has more."""
"""At most 1 KB: hosts put it into every conversation."""


def guide(zone: str) -> str:
    """The scheduling guide as Markdown; ``zone`` is the installation's default time zone."""
    text = files("crontask_server").joinpath("guide.md").read_text(encoding="utf-8")
    return text.replace("{zone}", zone)
