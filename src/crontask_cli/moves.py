"""What changes a task's state: pause, resume, delete; and run."""

from __future__ import annotations

import click

from crontask_cli.render import emit, tell
from crontask_cli.shell import Command, Shell, pass_shell
from crontask_cli.task_options import task_argument, task_ref

__all__ = ["delete_command", "pause_command", "resume_command", "run_command"]


@click.command(
    "pause", cls=Command, examples=['crontask pause 7 --reason "agent is being upgraded"']
)
@task_argument
@click.option("--reason", default="", metavar="TEXT", help="Why; shown with the task.")
@pass_shell
def pause_command(shell: Shell, task: str, by_key: bool, reason: str) -> None:
    """Stop a task from firing until it is resumed.

    Waiting fires are cancelled, running ones go on. Pausing a paused task changes nothing.
    """
    from crontask_adapters import views

    ref, user = task_ref(task, by_key), shell.reader()
    answer = shell.with_app(lambda app: app.tasks.pause(user, ref, reason))
    emit(shell, views.task(answer, "paused", content=False), tell)


@click.command("resume", cls=Command, examples=["crontask resume 7"])
@task_argument
@pass_shell
def resume_command(shell: Shell, task: str, by_key: bool) -> None:
    """Let a paused task fire again, from now on.

    Fires missed while it was paused are not made up for.
    """
    from crontask_adapters import views

    ref, user = task_ref(task, by_key), shell.reader()
    answer = shell.with_app(lambda app: app.tasks.resume(user, ref))
    emit(shell, views.task(answer, "resumed", content=False), tell)


@click.command("delete", cls=Command, examples=["crontask delete 7", "crontask delete tea-1"])
@task_argument
@pass_shell
def delete_command(shell: Shell, task: str, by_key: bool) -> None:
    """Delete a task; its executions stay readable.

    Its key is free again.
    """
    from crontask_adapters import views

    ref, user = task_ref(task, by_key), shell.reader()
    answer = shell.with_app(lambda app: app.tasks.delete(user, ref))
    emit(shell, views.deleted(answer), tell)


@click.command("run", cls=Command, examples=["crontask run 7", "crontask run 7 --key retry-1"])
@task_argument
@click.option("--key", "--idempotency-key", "key", metavar="KEY", help="The same key runs it once.")
@pass_shell
def run_command(shell: Shell, task: str, by_key: bool, key: str | None) -> None:
    """Fire a task once, now, outside its schedule.

    Works on enabled and paused tasks. A running node sends it.
    """
    from crontask_adapters import views

    ref, user = task_ref(task, by_key), shell.reader()
    answer = shell.with_app(lambda app: app.tasks.run_now(user, ref, key))
    emit(shell, views.run(answer), tell)
