"""What every command has: the global options, the settings, and an opened application.

Nothing here imports more than click before a command needs it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from crontask_adapters.settings import Settings
    from crontask_adapters.settings_load import Loaded
    from crontask_adapters.wiring import App

__all__ = ["Argument", "Command", "Group", "Shell", "global_options", "pass_shell"]

T = TypeVar("T")


class Shell:
    """The global options as given, wherever on the line, and what follows from them."""

    def __init__(self) -> None:
        self.config: Path | None = None
        self.user: str | None = None
        self.all_users = False
        self.as_json = False
        self.overrides: dict[str, str] = {}
        self._loaded: Loaded | None = None

    def loaded(self) -> Loaded:
        """The settings with the source of each. Raises ConfigError."""
        if self._loaded is None:
            from crontask_adapters.settings_load import load

            self._loaded = load(self.overrides, config=self.config)
        return self._loaded

    @property
    def settings(self) -> Settings:
        return self.loaded().settings

    def for_store(self, *, quiet: bool = False) -> Settings:
        """The settings, for a command that opens the store. The user's data folder, where the store
        is by default, is made; a folder that was named is not. ``quiet``: a log of warnings only,
        unless a level was asked for, since one command's answer is its output."""
        import attrs

        loaded = self.loaded()
        settings = loaded.settings
        if loaded.origins["store.url"] == "default":
            folder = Path(settings.store.url.removeprefix("sqlite:///")).parent
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if quiet and loaded.origins["log.level"] == "default":
            return attrs.evolve(settings, log=attrs.evolve(settings.log, level="warning"))
        return settings

    def reader(self) -> str | None:
        """Whose tasks are meant: a user, or None for everybody's."""
        return None if self.all_users else self.user or self.settings.identity.user

    def owner(self) -> str:
        """Whom a new task belongs to: one user. Raises InvalidInput with --all-users."""
        if self.all_users and not self.user:
            from crontask_core.errors import InvalidInput

            raise InvalidInput(
                "a new task belongs to one user",
                field="--all-users",
                hint="Name the user with --user instead.",
                example="--user josetian",
            )
        return self.user or self.settings.identity.user

    def with_app(self, use: Callable[[App], Awaitable[T]]) -> T:
        """Open the store, run ``use`` on it, close it; the one ``asyncio.run`` of a command."""
        settings = self.for_store(quiet=True)

        async def run() -> T:
            from crontask_adapters.wiring import open_app

            app = await open_app(settings, roles=frozenset())
            try:
                return await use(app)
            finally:
                await app.close()

        return asyncio.run(run())


pass_shell = click.make_pass_decorator(Shell, ensure=True)


def _store(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def callback(ctx: click.Context, _param: click.Parameter, value: Any) -> None:
        if value not in (None, False):
            setattr(ctx.ensure_object(Shell), name, value)

    return callback


def _override(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> None:
    for text in values:
        key, equals, value = text.partition("=")
        if not equals or "." not in key:
            raise click.BadParameter(
                f"{text!r} is not KEY=VALUE, such as scheduler.timezone=Europe/Berlin",
                ctx=ctx,
                param=param,
            )
        ctx.ensure_object(Shell).overrides[key.strip()] = value


def global_options() -> list[click.Parameter]:
    """Fresh option objects; the same for the group and every command."""
    return [
        *_value_options(),
        click.Option(
            ["--all-users"],
            is_flag=True,
            callback=_store("all_users"),
            help="Act on everybody's tasks.",
            expose_value=False,
        ),
        click.Option(
            ["--json"],
            is_flag=True,
            callback=_store("as_json"),
            help="Answer, or the error, as JSON.",
            expose_value=False,
        ),
    ]


def _value_options() -> list[click.Parameter]:
    given: Mapping[str, Any] = {"expose_value": False}
    return [
        click.Option(
            ["--config"],
            type=click.Path(path_type=Path),
            callback=_store("config"),
            metavar="FILE",
            help="Configuration file (TOML).",
            **given,
        ),
        click.Option(
            ["-o", "--option"],
            multiple=True,
            callback=_override,
            metavar="KEY=VALUE",
            help="Set one setting; may be repeated.",
            **given,
        ),
        click.Option(
            ["--user"],
            callback=_store("user"),
            metavar="USER",
            help="Act for this user (default: identity.user).",
            **given,
        ),
    ]


_SHARED = "Options of every command"
_GLOBAL_NAMES = frozenset(param.name for param in global_options())


class Argument(click.Argument):
    """An argument with a line of help."""

    def __init__(self, *args: Any, doc: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.doc = doc


class _Documented(click.Command):
    """Help in three parts: what and options, options every command has, examples."""

    examples: tuple[str, ...] = ()

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        parts: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": [], _SHARED: []}
        for param in self.get_params(ctx):
            if isinstance(param, Argument):
                parts["Arguments"].append((param.make_metavar(ctx), param.doc))
                continue
            record = param.get_help_record(ctx)
            if record is not None:
                shared = param.name in _GLOBAL_NAMES and not param.expose_value
                parts[_SHARED if shared else "Options"].append(record)
        for title, records in parts.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.examples:
            with formatter.section("Examples" if len(self.examples) > 1 else "Example"):
                for line in self.examples:
                    formatter.write(f"{' ' * formatter.current_indent}{line}\n")


class Command(_Documented):
    """A command with the global options and examples."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)
        self.params.extend(global_options())


class Group(_Documented, click.Group):
    """A group of ``Command``s, itself with the global options."""

    command_class = Command

    def __init__(self, *args: Any, examples: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)
        self.params.extend(global_options())

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)
