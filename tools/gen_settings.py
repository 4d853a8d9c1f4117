"""Writes docs/reference/settings.md out of the settings themselves. Run it after a change there."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from crontask_adapters.settings import Settings, specs, value_of
from crontask_adapters.settings_fields import Kind, Spec, show, show_duration
from crontask_adapters.settings_load import env_name

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "settings.md"

HEAD = """\
# Settings

<!-- Written by tools/gen_settings.py; change the settings, not this page. -->

Every setting has a default; with none given, crontask runs on a SQLite file in your data folder.

A value is taken from, the later one winning:

1. the default,
2. one TOML file: `--config FILE`, else `CRONTASK_CONFIG`, else `./crontask.toml`, else
   `$XDG_CONFIG_HOME/crontask/crontask.toml` (`~/.config/crontask/crontask.toml`),
3. the environment: `scheduler.poll_interval` is `CRONTASK_SCHEDULER_POLL_INTERVAL`,
4. an option of the command.

Unknown names are errors, in the file, in the environment and as options; the nearest right name is
offered, and all faults are told at once. (Left alone are the variables Kubernetes sets for a
service called `crontask` or `crontask-...`.) `crontask config` shows every value and where it came
from. Secrets are never shown, logged or put into an error.

Durations: `500ms`, `30s`, `5m`, `1h30m`, `2d`, or plain seconds. Lists: a TOML array, or text with
commas between. Tables of texts: a TOML table, or `Name: value, Name: value`.

```toml
[store]
url = "mysql+asyncmy://crontask:secret@db.example.com:3306/crontask"

[executor]
default_callback_url = "http://agent.example.com/v1/task/execute"

[callback]
headers = { Authorization = "Bearer abc" }

[[server.tokens]]                      # the digest of a token, never the token
name = "agent"                         # sha256: printf %s "$TOKEN" | sha256sum
sha256 = "<64 hex digits>"
scopes = ["read", "write", "report", "act_as"]
```

A token of a user has `user` and the scopes it needs; the token of an agent that serves many users
has the scope `act_as` and, if it wants one, a `default_user`. Tokens can be JWTs as well: give
`server.jwt.secret_file` or `server.jwt.public_key_file`, and `server.jwt.audience`.

What a running node tells of itself: [metrics and log lines](metrics.md).
"""


def settings_page() -> str:
    """The whole page."""
    parts = [HEAD]
    for group, entries in groupby(specs(), key=lambda entry: entry[0].rpartition(".")[0]):
        parts.append(f"\n## {group}\n")
        parts += [_entry(key, spec) for key, spec in entries]
    return "\n".join(parts)


def _entry(key: str, spec: Spec) -> str:
    default = spec.shown_default or show(spec, value_of(Settings(), key)) or "none"
    facts = [f"{spec.kind.value}{_bounds(spec)}", f"default {_code(spec, default)}"]
    if spec.example:
        facts.append(f"such as `{spec.example}`")
    where = "TOML file only" if spec.kind in (Kind.TOKENS, Kind.TABLES) else f"`{env_name(key)}`"
    secret = " Secret." if spec.secret else ""
    return f"### `{key}`\n\n{spec.help}{secret}\n\n- {'; '.join(facts)}\n- {where}\n"


def _bounds(spec: Spec) -> str:
    if spec.choices:
        return ": " + ", ".join(f"`{choice}`" for choice in spec.choices)
    unit = f" {spec.unit}" if spec.unit else ""
    if spec.low is None:
        return unit
    low, high = (
        show_duration(bound) if spec.kind is Kind.DURATION else f"{bound:,}"
        for bound in (spec.low, spec.high)
    )
    return f", {low} to {high}{unit}"


def _code(spec: Spec, default: str) -> str:
    return default if spec.shown_default or default == "none" else f"`{default}`"


if __name__ == "__main__":
    PAGE.write_text(settings_page(), encoding="utf-8")
    print(f"wrote {PAGE.name}")
