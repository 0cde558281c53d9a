"""``headrace store``: looks at the files of a store, and repairs them."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli._terminal import say, terminal

if TYPE_CHECKING:
    from headrace.store.damage.examination import Examination, RepairPlan
    from headrace.store.damage.inspection import Finding


app = typer.Typer(
    help="Look for damage in the files of the embedded broker, and repair them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Folder = Annotated[
    Path, typer.Argument(metavar="DIR", help="The data folder, or the broker's folder in it.")
]
#: A store smaller than this is read before a bar would be seen.
_SMALL = 256 * 1024 * 1024
_MOST_LOSSES = 20


@app.command()
def verify(
    folder: Folder,
    deep: Annotated[
        bool, typer.Option("--deep", help="Look at every record, not only at every entry.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Write one JSON object.")] = False,
) -> None:
    """Report what is damaged in a store, by file and offset; exit status 1 when anything is.

    It changes nothing.  A broker may have the store open: what it writes meanwhile is left out.
    """
    from headrace.store.damage.examination import examine_store

    path = _store_folder(folder)
    with _progress(path, "verifying") as progress:
        found = examine_store(path, deep=deep, progress=progress)
    if as_json:
        sys.stdout.write(json.dumps(_as_json(found), indent=2) + "\n")
    else:
        _print_examination(found)
    if found.damage:
        raise typer.Exit(1)


@app.command()
def repair(
    folder: Folder,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Repair a store that no broker has open; no undamaged message is dropped.

    It shows what will be done and what is lost, and asks before it begins.  The old version of
    every file that changes is kept.
    """
    from headrace.store.damage.examination import repair_store

    path = _store_folder(folder)

    def confirm(plan: RepairPlan) -> bool:
        _print_plan(plan)
        return yes or typer.confirm("Repair the store?", err=True)

    with _progress(path, "reading") as progress:
        done = repair_store(path, confirm, progress=progress)
    if done is None:
        say("Nothing was changed.")
        raise typer.Exit(1)
    if not done:
        say("Nothing is damaged, and nothing was changed.")
        return
    for queue in done.queues:
        topic, queue_id = queue.key
        say(
            f"Compaction log of topic {topic!r}, queue {queue_id}: {queue.restored} messages came "
            f"back from the commit log, {len(queue.lost)} are lost."
        )
        for line in _loss_lines(queue.losses):
            say(f"Lost: {line}.")
    say(f"Repaired. The old files are in {done.aside}.")
    if done.hopeless:
        raise typer.Exit(1)


def _store_folder(folder: Path) -> Path:
    """Return the store in a data folder, or the folder itself."""
    from headrace.embedded import broker_folder

    for place in (folder, folder / "store", broker_folder(folder) / "store"):
        if (place / "log").is_dir():
            return place
    return folder


def _as_json(found: Examination) -> dict[str, object]:
    return {
        "store": str(found.folder),
        "damaged": bool(found.damage),
        "open_in_process": found.open_in,
        "entries": found.entries,
        "records": found.records,
        "queues": found.queues,
        "bytes": found.bytes,
        "seconds": round(found.seconds, 3),
        "findings": [finding.as_json() for finding in found.findings],
    }


def _print_examination(found: Examination) -> None:
    console = terminal()
    if found.open_in is not None:
        say(f"The store is open in process {found.open_in}: what it writes now is left out.")
    for finding in found.findings:
        console.print(_text_of(finding))
    speed = found.bytes / max(found.seconds, 1e-9) / 1e6
    say(
        f"{found.entries:,} entries with {found.records:,} records of {found.queues:,} queues, "
        f"{found.bytes:,} bytes in {found.seconds:.1f} s ({speed:,.0f} MB/s)."
    )
    if found.damage:
        say(f"Damaged: {len(found.damage)} places. `headrace store repair` fences them off.")
    else:
        say("Nothing is damaged.")


def _text_of(finding: Finding) -> object:
    from rich.text import Text

    mark, style = ("✗", "bold red") if finding.severity == "damage" else ("·", "dim")
    where = f"{finding.path}"
    if finding.offset is not None:
        where += f", byte {finding.offset}"
    if finding.position is not None:
        where += f" (position {finding.position} of the log)"
    text = Text.assemble((mark, style), f" {where}: {finding.text}")
    for line in _loss_lines(finding.losses):
        text.append(f"\n    lost: {line}")
    text.append("\n    → ", "cyan").append(finding.means)
    return text


def _loss_lines(losses: object) -> Iterator[str]:
    lines = [str(loss) for loss in losses]  # type: ignore[attr-defined]
    yield from lines[:_MOST_LOSSES]
    if len(lines) > _MOST_LOSSES:
        yield f"and {len(lines) - _MOST_LOSSES} more queues"


def _print_plan(plan: RepairPlan) -> None:
    for rewrite in plan.log.rewrites:
        say(f"{rewrite.target} is made anew, with {len(rewrite.fences)} fences.")
    if plan.log.cut is not None:
        say(f"The log is cut at position {plan.log.cut}: an unfinished write follows there.")
    if plan.rebuilds or plan.log:
        say("Checkpoint and indexes are made again from the log.")
    for line in _loss_lines(plan.losses):
        say(f"Lost already: {line}.")
    for queue in plan.queues:
        say(f"{queue.folder}: {len(queue.damage)} places are damaged; it is made anew.")
    for queue in plan.hopeless:
        say(f"{queue.folder} has lost its MANIFEST and the copy of it: it is left as it is.")
    say(f"The old files are kept in {plan.aside}.")


@contextlib.contextmanager
def _progress(folder: Path, title: str) -> Iterator[Callable[[int], None]]:
    size = sum(path.stat().st_size for path in folder.glob("log/*.log"))
    console = terminal(error=True)
    if size < _SMALL or not console.is_terminal:
        yield lambda _done: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    with Progress(
        title, BarColumn(), DownloadColumn(), TransferSpeedColumn(), console=console, transient=True
    ) as bar:
        task = bar.add_task(title, total=size)
        yield lambda done: bar.update(task, advance=done)
