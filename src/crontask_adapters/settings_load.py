"""Reading settings: default, then TOML file, then environment, then option; the later one wins.

Everything that is wrong is found in one go and told with the key, the place and a right example.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import attrs

from crontask_adapters.settings import Settings, default_store_url, specs, value_of
from crontask_adapters.settings_checks import problems_of
from crontask_adapters.settings_fields import Bad, Kind, Spec, read, show
from crontask_core.errors import ConfigError

__all__ = ["Loaded", "SettingRow", "SettingsError", "describe", "env_name", "find_file", "load"]

CONFIG_ENV = "CRONTASK_CONFIG"
_PREFIX = "CRONTASK_"
_DEFAULT = "default"
_LINKS = re.compile(r"SERVICE_(HOST|PORT(_\w+)?)|PORT_\d+_(TCP|UDP)(_\w+)?", re.ASCII)


class SettingsError(ConfigError):
    """Settings are wrong: ``problems`` holds one ConfigError per fault, with its key in ``field``.

    The message lists them all, one a line.
    """

    def __init__(self, problems: Sequence[ConfigError]) -> None:
        first = problems[0]
        text = first.message
        if len(problems) > 1:
            lines = [f"  {problem.line()}" for problem in problems]
            text = "\n".join([f"{len(problems)} settings are wrong:", *lines])
        super().__init__(
            text,
            field=first.field,
            received=first.received,
            hint=first.hint if len(problems) == 1 else "",
            example=first.example if len(problems) == 1 else "",
            candidates=first.candidates,
        )
        self.problems = tuple(problems)


@attrs.frozen(kw_only=True)
class Loaded:
    """Settings with where each came from. ``origins`` maps a key to "default", the file's path,
    the environment variable's name, or "option"; ``file`` is the TOML file that was read."""

    settings: Settings
    origins: Mapping[str, str]
    file: Path | None = None


class SettingRow(NamedTuple):
    """One line of ``crontask config``; secrets are masked."""

    key: str
    value: str
    origin: str
    default: str
    help: str


class _Given(NamedTuple):
    value: object
    origin: str


def env_name(key: str) -> str:
    """``scheduler.poll_interval`` -> ``CRONTASK_SCHEDULER_POLL_INTERVAL``."""
    return _PREFIX + key.replace(".", "_").upper()


def load(
    options: Mapping[str, str] | None = None,
    *,
    config: str | Path | None = None,
    environ: Mapping[str, str] | None = None,
    folder: str | Path = ".",
) -> Loaded:
    """Read the settings (X-CONF).

    ``options`` maps dotted keys to text. ``config`` is the file to read; else ``CRONTASK_CONFIG``,
    ``crontask.toml`` in ``folder``, or the user's ``crontask/crontask.toml`` under
    ``$XDG_CONFIG_HOME`` or ``~/.config``: the first there is, and only that one. Raises
    SettingsError (CONFIG_INVALID) with every fault found.
    """
    env = os.environ if environ is None else environ
    problems: list[ConfigError] = []
    file = find_file(config, env, Path(folder), problems)
    known = dict(specs())
    given: dict[str, _Given] = {}
    if file is not None:
        _from_file(file, known, given, problems)
    _from_environ(env, known, given, problems)
    for key, text in (options or {}).items():
        if key in known:
            given[key] = _Given(text, "option")
        else:
            problems.append(_unknown(key, "option", known))
    values = {"store.url": default_store_url(env)}
    bad = {problem.field for problem in problems}
    for key, (raw, origin) in given.items():
        try:
            values[key] = read(known[key], raw)
        except Bad as fault:
            problems.append(_misread(key, known[key], raw, origin, fault))
            bad.add(key)
    settings = _build(Settings, values, "")
    problems += [p for p in problems_of(settings) if not _touches(p, bad)]
    if problems:
        raise SettingsError(problems)
    origins = {key: given[key].origin if key in given else _DEFAULT for key in known}
    return Loaded(settings=settings, origins=MappingProxyType(origins), file=file)


def describe(settings: Settings, origins: Mapping[str, str]) -> list[SettingRow]:
    """Every setting as ``crontask config`` shows it, in the order of the reference page."""
    standard = Settings()
    rows = []
    for key, spec in specs():
        default = spec.shown_default or show(spec, value_of(standard, key)) or "none"
        value = show(spec, value_of(settings, key))
        origin = origins.get(key, _DEFAULT)
        if not value:
            value = spec.shown_default if origin == _DEFAULT else ""
        rows.append(SettingRow(key, value or "none", origin, default, spec.help))
    return rows


def find_file(
    config: str | Path | None,
    environ: Mapping[str, str],
    folder: Path,
    problems: list[ConfigError],
) -> Path | None:
    """The TOML file to read, or None. A file that was named and is not there is a problem."""
    named = config or environ.get(CONFIG_ENV)
    if named:
        path = Path(named).expanduser()
        if not path.is_file():
            source = "--config" if config else CONFIG_ENV
            problems.append(
                ConfigError(
                    f"{source} names {path}, which is not a file",
                    hint="give the path of a TOML file, or leave it out",
                )
            )
            return None
        return path
    home = Path(environ.get("HOME") or Path.home())
    user = Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "crontask"
    for path in (folder / "crontask.toml", user / "crontask.toml"):
        if path.is_file():
            return path
    return None


def _from_file(
    file: Path, known: Mapping[str, Spec], given: dict[str, _Given], problems: list[ConfigError]
) -> None:
    try:
        data = tomllib.loads(file.read_bytes().decode("utf-8-sig"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        text = error.strerror if isinstance(error, OSError) else str(error)
        problems.append(ConfigError(f"{file} cannot be read: {text}", hint="it must be TOML"))
        return
    groups = {key.rpartition(".")[0] for key in known}
    for key, value in _leaves(data, groups, ""):
        if key in known:
            given[key] = _Given(value, str(file))
        elif key in groups:
            problems.append(
                ConfigError(f"[{key}] must be a table (from {file})", field=key, received=value)
            )
        else:
            problems.append(_unknown(key, str(file), known))


def _leaves(table: Mapping[str, Any], groups: set[str], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        key = prefix + name
        if key in groups and isinstance(value, Mapping):
            yield from _leaves(value, groups, key + ".")
        else:
            yield key, value


def _from_environ(
    environ: Mapping[str, str],
    known: Mapping[str, Spec],
    given: dict[str, _Given],
    problems: list[ConfigError],
) -> None:
    names = {env_name(key): key for key in known}
    for name in sorted(environ):
        if not name.startswith(_PREFIX) or name == CONFIG_ENV or _is_link(name, environ):
            continue
        if name in names:
            given[names[name]] = _Given(environ[name], name)
            continue
        ends = {known_name.removeprefix(_PREFIX) for known_name in (*names, CONFIG_ENV)}
        close = difflib.get_close_matches(name.removeprefix(_PREFIX), sorted(ends), n=3)
        near = [_PREFIX + end for end in close]
        problems.append(
            ConfigError(
                f"there is no setting for the environment variable {name}",
                field=name,
                hint=f"did you mean {near[0]}?" if near else "`crontask config` lists them all",
                candidates=near,
            )
        )


def _is_link(name: str, environ: Mapping[str, str]) -> bool:
    """Whether Kubernetes set this variable because a service there is called crontask or
    crontask-something: those clash with our prefix and even with ``CRONTASK_SERVER_PORT``."""
    for host in environ:
        if host.startswith(_PREFIX) and host.endswith("_SERVICE_HOST"):
            prefix = host.removesuffix("SERVICE_HOST")
            rest = name.removeprefix(prefix)
            address = rest == "PORT" and re.match(r"(tcp|udp|sctp)://", environ[name])
            if name.startswith(prefix) and (_LINKS.fullmatch(rest) or address):
                return True
    return False


def _unknown(key: str, origin: str, known: Mapping[str, Spec]) -> ConfigError:
    near = difflib.get_close_matches(key, known, n=3, cutoff=0.6)
    last = key.rpartition(".")[2]
    near += [k for k in known if k.rpartition(".")[2] == last and k not in near]
    return ConfigError(
        f"there is no setting {key} (from {origin})",
        field=key,
        hint=f"did you mean {near[0]}?" if near else "`crontask config` lists them all",
        candidates=near[:3],
    )


def _misread(key: str, spec: Spec, raw: object, origin: str, fault: Bad) -> ConfigError:
    # Only where what was given cannot be a secret put into the wrong place.
    plain = spec.kind in (Kind.INT, Kind.BOOL, Kind.DURATION, Kind.CHOICE, Kind.ZONE)
    return ConfigError(
        f"{fault.what} (from {origin})",
        field=key,
        received=raw if plain else "",
        example=fault.example,
    )


def _touches(problem: ConfigError, bad: set[str]) -> bool:
    """Whether a check looked at a value that could not be read, and so at its default."""
    return any(key == problem.field or key in problem.line() for key in bad if key)


def _build(group: type, values: Mapping[str, Any], prefix: str) -> Any:
    parts = {}
    for field in attrs.fields(group):
        key = prefix + field.name
        if "spec" not in field.metadata:
            parts[field.name] = _build(type(field.default.factory()), values, f"{key}.")
        elif key in values:
            parts[field.name] = values[key]
    return group(**parts)
