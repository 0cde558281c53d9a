"""Config keys of every source that reads whole files."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from headrace.connect import Config, ConfigProblem, at_least, between, declare, key, one_of
from headrace.connect.connectors.formats.reading import FORMATS, Reading

__all__ = ["READING_KEYS", "delimiter_problems", "reading_of"]

READING_KEYS = declare(
    key(
        "format",
        str,
        "What the files are; auto goes by their endings; whole makes a record of each file.",
        default="auto",
        valid=one_of("auto", *FORMATS),
    ),
    key(
        "when.done",
        str,
        "What happens to a file once all its rows are committed.",
        default="keep",
        valid=one_of("keep", "move", "delete"),
    ),
    key(
        "forget.after.ms",
        timedelta,
        "How long a file must be gone until it is forgotten that it was read: one that comes back "
        "later is read anew.  What the task itself moves or deletes is forgotten at once.",
        default=timedelta(days=1),
        importance="low",
    ),
    key(
        "ledger.after.files",
        int,
        "How many files that were read and stay are remembered in the commit record; what is more "
        "is written into a ledger beside the files.",
        default=10_000,
        valid=at_least(1),
        importance="low",
    ),
    key(
        "bad.files",
        str,
        "What to do with a file that is not what its format says: fail the task, or log it "
        "and skip the rest of it.",
        default="fail",
        valid=one_of("fail", "skip"),
    ),
    key("csv.delimiter", str, r"What parts the fields of a CSV file, such as \t.", default=","),
    key("csv.header", bool, "Whether CSV files begin with a line of names.", default=True),
    key("csv.columns", list, "Names of the columns, instead of the header's.", default=[]),
    key(
        "csv.types",
        str,
        "Whether columns of CSV files get types by their first megabyte, or stay text.",
        default="infer",
        valid=one_of("infer", "text"),
    ),
    key(
        "batch.max.rows",
        int,
        "Most rows of a poll.",
        default=10_000,
        valid=between(1, 1_000_000),
        importance="low",
    ),
    key(
        "scan.interval.ms",
        timedelta,
        "How often to look for new files.",
        default=timedelta(seconds=1),
        importance="low",
    ),
)


def reading_of(config: Config) -> Reading:
    r"""Tell how files are read.

    >>> reading_of(READING_KEYS.parse({"csv.delimiter": r"\t"})).delimiter
    '\t'
    """
    return Reading(
        rows=config["batch.max.rows"],
        delimiter=_delimiter(config),
        header=config["csv.header"],
        columns=tuple(config["csv.columns"]),
        text=config["csv.types"] == "text",
    )


def delimiter_problems(config: Config) -> Iterable[ConfigProblem]:
    """Name what is wrong with the delimiter."""
    if len(_delimiter(config)) != 1:
        yield ConfigProblem("csv.delimiter", "The key csv.delimiter must be one character.")


def _delimiter(config: Config) -> str:
    text: str = config["csv.delimiter"]
    return text.encode().decode("unicode_escape")
