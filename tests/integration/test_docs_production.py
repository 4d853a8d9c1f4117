"""The statements of the production page, on a real server: grants, upgrade, a node, rollback."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from crontask_core import Callback, ExecStatus, NewTask, TaskRef
from crontask_server.embed import open_scheduler
from tests.integration.test_docs_embed import ended, settings_in
from tests.services import MariaDb
from tests.unit.test_docs import DOCS, blocks

PAGE = DOCS / "howto/production.md"
SET_UP, ROLL_BACK = blocks(PAGE, "sql")
DATABASE = "howto"


def statements(block: str) -> list[str]:
    """The statements of a block, on names of this test."""
    plain = re.sub(r"--.*", "", block)
    plain = plain.replace("'crontask'@", "'howto_node'@").replace("'crontask_admin'@", "'howto'@")
    plain = re.sub(r"\bcrontask(?=\.\*| CHARACTER)", DATABASE, plain)
    return [" ".join(part.split()) for part in plain.split(";") if part.strip()]


def crontask(folder: Path, url: str, *words: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("CRONTASK_")}
    return subprocess.run(
        [sys.executable, "-m", "crontask_cli", *words],
        cwd=folder,
        env={**clean, "CRONTASK_STORE_URL": url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


async def test_the_grants_of_the_page_are_enough_and_the_rollback_leaves_nothing(
    mariadb_server: MariaDb, tmp_path: Path
) -> None:
    mariadb_server.execute(*statements(SET_UP))
    address = f"127.0.0.1:{mariadb_server.port}/{DATABASE}"
    admin = f"mysql+asyncmy://howto:CHANGE-ME-1@{address}"
    node = f"mysql+asyncmy://howto_node:CHANGE-ME-2@{address}"

    early = crontask(tmp_path, node, "list")
    assert (5, True) == (early.returncode, "crontask db upgrade" in early.stderr)
    assert 5 == crontask(tmp_path, node, "db", "check").returncode
    shown = crontask(tmp_path, admin, "db", "upgrade", "--sql")
    assert "CREATE TABLE t_cron_task" in shown.stdout
    done = crontask(tmp_path, admin, "db", "upgrade")
    assert 0 == done.returncode, done.stderr
    assert 0 == crontask(tmp_path, node, "db", "check").returncode

    async def work(fire: Callback) -> str:
        return "fired with few rights"

    async with open_scheduler(settings_in(tmp_path, **{"store.url": node}), work) as app:
        new = NewTask(task_name="n", task_content="c", delay_seconds=0)
        task = (await app.tasks.create("ann", new)).task
        row = await ended(app, task.id)
        assert (ExecStatus.SUCCESS, "fired with few rights") == (row.exec_status, row.ga_result)
        await app.tasks.delete("ann", TaskRef(id=task.id))
        await app.prune()

    mariadb_server.execute(f"USE {DATABASE}", *statements(ROLL_BACK))
    assert [] == mariadb_server.execute(f"SHOW TABLES FROM {DATABASE}")
    mariadb_server.execute(f"DROP DATABASE {DATABASE}", "DROP USER howto, howto_node")


@pytest.mark.requirement("X-CONF")
def test_the_configuration_of_the_page_is_accepted(tmp_path: Path) -> None:
    (config,) = blocks(PAGE, "toml")
    (tmp_path / "crontask.toml").write_text(config)
    clean = {k: v for k, v in os.environ.items() if not k.startswith("CRONTASK_")}
    done = subprocess.run(
        [sys.executable, "-m", "crontask_cli", "config", "--changed"],
        cwd=tmp_path,
        env=clean,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (0, "") == (done.returncode, done.stderr)
    assert "server.tokens" in done.stdout
    assert "CHANGE-ME" not in done.stdout
