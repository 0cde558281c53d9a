"""Counts every word of Python's standard library, exactly once, and checks the result.

Starts the embedded broker, sends every line of the standard library's ``.py`` files to the topic
``lines``, runs ``word_count.py`` on Spark until all of it is counted, and compares every count with
a plain Python count of the same files.  Run it by ``make demo``.
"""

from __future__ import annotations

import shutil
import sys
import sysconfig
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from headrace import serdes
from headrace.cli.loading import load_program
from headrace.cli.progress import shown
from headrace.client import Admin, Client, MessageQueue, Producer, PullConsumer
from headrace.embedded import embedded_broker
from headrace.errors import HeadraceError
from headrace.java import use_java
from headrace.keys import EXACT_KEY, KEYS, keys_from_columns
from headrace.settings import JobSettings
from headrace.spark import StreamJob

DATA = Path(".headrace") / "demo"
PROGRAM = Path(__file__).with_name("word_count.py")
QUEUES = 4
LINES_AT_ONCE = 20_000

console = Console(highlight=False)


def main() -> int:
    """Run the demo; exit status 0 when every count is right."""
    # Each run starts from nothing, so that what is counted is what this run sent.
    shutil.rmtree(DATA, ignore_errors=True)
    files = list(standard_library())
    use_java()
    with embedded_broker(DATA) as address, Client(address) as client:
        console.print(f"Embedded broker at [bold]{address}[/bold], data in {DATA}")
        expected = send_lines(client, files)
        seconds, warm = count_on_spark(address)
        counted = read_counts(client)
    show(counted, seconds, warm)
    return check(counted, expected)


def standard_library() -> Iterator[Path]:
    """Find the source files of the running interpreter's standard library."""
    root = Path(sysconfig.get_path("stdlib"))
    for file in sorted(root.rglob("*.py")):
        if file.is_file() and not {"site-packages", "dist-packages"} & set(file.parts):
            yield file


def send_lines(client: Client, files: list[Path]) -> Counter[str]:
    """Send every line, and count its words the plain way."""
    admin = Admin(client)
    for topic in ("lines", "counts"):
        admin.create_topic(topic, queues=QUEUES)
    queues, producer = client.queues("lines", for_="write"), Producer(client)
    expected: Counter[str] = Counter()
    waiting: list[str] = []
    sent = chunks = 0

    def send() -> None:
        nonlocal sent, chunks
        bodies = pa.array(waiting, pa.string()).cast(pa.binary())
        producer.send_columns(queues[chunks % len(queues)], bodies)
        sent, chunks = sent + len(waiting), chunks + 1
        waiting.clear()

    with bar("sending lines", "files") as progress:
        for file in progress.track(files):
            for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
                expected.update(line.lower().split())
                waiting.append(line)
            if len(waiting) >= LINES_AT_ONCE:
                send()
        if waiting:
            send()
    words = sum(expected.values())
    console.print(f"Sent {sent:,} lines with {words:,} words from {len(files):,} files")
    return expected


def count_on_spark(address: str) -> tuple[float, float]:
    """Run the pipeline to the last line: seconds, Spark's start apart, and lines/s at the end."""
    (topology,) = load_program(PROGRAM).groups
    settings = JobSettings(namesrv=address, data_dir=DATA)
    console.print("Starting Spark ...")
    with StreamJob(topology, settings) as job:
        job.start()
        begun = time.monotonic()
        with shown(job.statistics, topology.name, to_the_end=True):
            job.await_caught_up()
        return time.monotonic() - begun, job.statistics().records_per_second


def read_counts(client: Client) -> dict[str, int]:
    """Read the topic of results; the last one of each word is its count."""
    consumer, queues = PullConsumer(client), client.queues("counts")
    ends = consumer.end_offsets(queues)
    counted: dict[str, int] = {}
    with bar("reading counts", "results") as progress:
        task = progress.add_task("reading counts", total=sum(ends.values()))
        for queue in queues:
            for results in results_of(consumer, queue, ends[queue]):
                counted.update(results)
                progress.advance(task, len(results))
    return counted


def results_of(
    consumer: PullConsumer, queue: MessageQueue, end: int
) -> Iterator[list[tuple[str, int]]]:
    """Read a queue block by block, as pairs of word and count."""
    for block in consumer.blocks(queue, 0, end):
        columns = block.columns()
        words = keys_from_columns(columns.property(KEYS), columns.property(EXACT_KEY))
        counts = [serdes.json.deserialize(body) for body in columns.body.to_pylist()]
        yield list(zip(words, counts, strict=True))


def show(counted: dict[str, int], seconds: float, warm: float) -> None:
    """Print the twenty commonest words and the rates."""
    total = sum(counted.values())
    table = Table("word", "count", title="Commonest words")
    table.columns[1].justify = "right"
    for word, count in sorted(counted.items(), key=lambda pair: (-pair[1], pair[0]))[:20]:
        table.add_row(word, f"{count:,}")
    console.print(table)
    console.print(f"{total:,} words, {len(counted):,} different ones, counted exactly once")
    console.print(
        f"in {seconds:.1f} s from a cold start: [bold]{total / seconds:,.0f} words/s[/bold]; "
        f"{warm:,.0f} lines/s when warm"
    )


def check(counted: dict[str, int], expected: Counter[str]) -> int:
    """Compare every count with the plain one."""
    wrong = {
        word: (counted.get(word, 0), expected[word])
        for word in counted.keys() | expected.keys()
        if counted.get(word, 0) != expected[word]
    }
    if not wrong:
        console.print(f"[green]✓[/green] All {len(expected):,} counts equal the plain Python count")
        return 0
    console.print(
        f"[bold red]✗[/bold red] {len(wrong):,} counts differ from the plain Python count"
    )
    for word, (ours, plain) in list(wrong.items())[:10]:
        console.print(f"  {word!r}: {ours:,} instead of {plain:,}", markup=False)
    return 1


def bar(title: str, unit: str) -> Progress:
    """Make a progress bar."""
    return Progress(
        TextColumn(title),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        console=console,
    )


if __name__ == "__main__":
    try:
        sys.exit(main())
    except HeadraceError as error:
        console.print(f"[bold red]error:[/bold red] {error}")
        sys.exit(1)
