"""What is shown on a terminal cannot be abused, and lines up whatever the script."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from crontask_cli.render import clean, details, table


def test_control_characters_are_spelled_out() -> None:
    assert "a\\x1b[2Jb\\u202ec⏎d" == clean("a\x1b[2Jb\u202ec\nd")


def test_chinese_and_emoji_stay_as_they_are() -> None:
    assert "每日报告 🕘" == clean("每日报告 🕘")


@pytest.mark.requirement("X-CLI")
def test_columns_line_up_under_wide_characters(capsys: pytest.CaptureFixture[str]) -> None:
    table(
        ["ID", "NAME", "STATE"], [[7, "每日报告", "enabled"], [12, "daily", "paused"]], right="ID"
    )
    assert ["ID  NAME      STATE", " 7  每日报告  enabled", "12  daily     paused"] == (
        capsys.readouterr().out.splitlines()
    )


def test_nothing_is_cut_when_the_output_is_not_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    table(["NAME"], [["字" * 900]])
    assert 1800 == cell_len(capsys.readouterr().out.splitlines()[1])


def test_details_leave_out_what_has_no_value_and_keep_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    details([("name", "Tea"), ("desc", ""), ("task_content", "one\ntwo"), ("max_retry", 0)])
    assert [
        "name          Tea",
        "task_content  one",
        "              two",
        "max_retry     0",
    ] == capsys.readouterr().out.splitlines()
