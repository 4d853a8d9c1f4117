"""Settings out of a file, an environment and options of a test's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from crontask_adapters.settings_load import Loaded, SettingsError, load
from crontask_core.errors import ConfigError


class Loader:
    """``load`` with a TOML text, an environment and options (``__`` for the dot in a key); nothing
    of this machine gets in."""

    def __init__(self, folder: Path) -> None:
        self._home = folder
        self._here = folder / "here"
        self._here.mkdir()

    def __call__(
        self, toml: str = "", env: Mapping[str, str] | None = None, **options: str
    ) -> Loaded:
        if toml:
            (self._here / "crontask.toml").write_text(toml, encoding="utf-8")
        environ = {"HOME": str(self._home), **(env or {})}
        named = {key.replace("__", "."): text for key, text in options.items()}
        return load(named, environ=environ, folder=self._here)

    def faults(
        self, toml: str = "", env: Mapping[str, str] | None = None, **options: str
    ) -> list[ConfigError]:
        """Every fault of settings that are refused."""
        with pytest.raises(SettingsError) as caught:
            self(toml, env, **options)
        assert caught.value.code == "CONFIG_INVALID"
        assert caught.value.exit_code == 2
        return list(caught.value.problems)
