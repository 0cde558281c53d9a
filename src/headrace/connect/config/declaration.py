"""Declarations: all keys of a plugin, from which values, validation and docs are made."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from headrace.connect.config.kinds import (
    MASK,
    Check,
    PluginName,
    Secret,
    Size,
    ValueKind,
    at_least,
    kind_of,
    matching,
    one_of,
)
from headrace.errors import ConnectorConfigError
from headrace.spelling import did_you_mean

# The typed values of a config, as plugins see them.


class Config(Mapping[str, Any]):
    """A config whose declared keys have typed values.

    Made by :meth:`ConfigDeclaration.parse`.  Keys that nobody declared are not among the values:
    :attr:`texts` has everything as it was written.

    Examples
    --------
    >>> from headrace.connect.config import Secret, declare, key
    >>> declaration = declare(
    ...     key("port", int, "Where it listens.", default=80), key("password", Secret, "Its word.")
    ... )
    >>> config = declaration.parse({"password": "swordfish", "extra": "1"})
    >>> config
    Config(port=80, password=Secret(********))
    >>> config.texts["extra"]
    '1'
    """

    def __init__(self, values: Mapping[str, Any], texts: Mapping[str, str]) -> None:
        self._values = dict(values)
        self.texts: Mapping[str, str] = dict(texts)

    def __getitem__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            hint = did_you_mean(name, self._values, "declare it with key(...)")
            message = f"The config key {name!r} is not declared."
            raise ConnectorConfigError(message, hint=hint) from None

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a declared key, or the default where it is missing or ``None``."""
        value = self._values.get(name)
        return default if value is None else value

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{name}={value!r}' for name, value in self.items())})"

    def section(self, prefix: str) -> dict[str, str]:
        """Return the texts of all keys that begin with a prefix, without the prefix.

        >>> Config({}, {"table.a": "1", "tables": "2"}).section("table.")
        {'a': '1'}
        """
        return {
            name.removeprefix(prefix): text
            for name, text in self.texts.items()
            if name.startswith(prefix)
        }


# Config keys: what a connector can be told, each declared once.

Importance = Literal["high", "medium", "low"]
"""How likely somebody sets a key."""

Width = Literal["none", "short", "medium", "long"]
"""How wide a form's field for the value is best."""

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """What is wrong with the value of one key.

    >>> ConfigProblem("port", "another connector listens there").key
    'port'
    """

    key: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    """One key of a config; made by :func:`key`."""

    name: str
    declared: Any
    doc: str
    default: Any = None
    required: bool = False
    valid: Check | None = None
    importance: Importance = "medium"
    group: str | None = None
    width: Width = "medium"
    #: The name that a form shows.
    display: str = ""
    #: Keys whose recommended values or visibility hang on this one.
    dependents: tuple[str, ...] = ()
    #: Gives good values, from the values of the other keys.
    recommend: Callable[[Values], Sequence[Any]] | None = None
    #: Whether the key matters, from the values of the other keys.
    visible: Callable[[Values], bool] | None = None
    #: Other names of the same key.
    aliases: tuple[str, ...] = ()

    @property
    def kind(self) -> ValueKind:
        """How its values are read and written."""
        return kind_of(self.declared)

    @property
    def secret(self) -> bool:
        """Whether its value is never shown."""
        return self.declared is Secret

    def parse(self, text: str) -> Any:
        """Read a value and check it.

        Raises
        ------
        ValueError
            With what is wrong.
        """
        value = self.kind.parse(text)
        if self.valid is not None and not self.valid.allows(value):
            raise ValueError(f"it must be {self.valid.words}")
        return value

    def write(self, value: Any) -> str | None:
        """Write a value as text, as REST and docs show it."""
        return None if value is None else self.kind.write(value)


def key(
    name: str,
    kind: Any,
    doc: str,
    *,
    default: Any = None,
    required: bool = False,
    valid: Check | None = None,
    importance: Importance | None = None,
    **more: Any,
) -> ConfigKey:
    """Declare a config key.

    Parameters
    ----------
    name
        What it is called, in words with dots: ``batch.max.rows``.
    kind
        ``str``, ``int``, ``float``, ``bool``, ``timedelta``, ``Size`` (bytes), ``Path``,
        ``Secret``, ``re.Pattern``, ``list``, ``list[int]`` ..., ``PluginName("converters")``.
    doc
        One or more sentences: what it does.
    default
        Its value where none is given; ``None`` says that there is none.
    required
        Whether it must be given.
    valid
        What values may stand, such as ``between(1, 100)``.
    importance
        ``high``, ``medium`` or ``low``; ``high`` for required keys unless said otherwise.
    more
        ``group``, ``width``, ``display``, ``dependents``, ``recommend``, ``visible`` and
        ``aliases`` of :class:`ConfigKey`.

    Examples
    --------
    >>> from headrace.connect.config import between
    >>> port = key("port", int, "Where it listens.", default=80, valid=between(1, 65535))
    >>> port.parse("8080")
    8080
    >>> port.parse("99999")
    Traceback (most recent call last):
    ValueError: it must be from 1 to 65535
    """
    if required and default is not None:
        raise TypeError(f"The key {name} is required and has a default: leave one of both out.")
    kind_of(kind)
    # Times and sizes below nothing make sense only where somebody says so.
    if valid is None and kind in {timedelta, Size}:
        valid = at_least(timedelta(0) if kind is timedelta else 0)
    return ConfigKey(
        name=name,
        declared=kind,
        doc=doc,
        default=default,
        required=required,
        valid=valid,
        importance=importance or ("high" if required else "medium"),
        display=more.pop("display", "") or name.replace(".", " ").capitalize(),
        **more,
    )


class ConfigDeclaration:
    """The keys of a plugin, in the order in which forms and docs show them.

    Examples
    --------
    >>> from headrace.connect.config import key
    >>> declaration = declare(key("file", str, "The file to read.", required=True))
    >>> declaration.problems({"flie": "a.txt"})[0].message
    'The key file is missing: The file to read.'
    """

    def __init__(self, keys: Iterable[ConfigKey]) -> None:
        self.by_name: dict[str, ConfigKey] = {}
        for one in keys:
            if one.name in self.by_name:
                raise TypeError(f"The config key {one.name} is declared twice.")
            self.by_name[one.name] = one

    def __iter__(self) -> Iterator[ConfigKey]:
        return iter(self.by_name.values())

    def __len__(self) -> int:
        return len(self.by_name)

    def __contains__(self, name: object) -> bool:
        return name in self.by_name

    def __getitem__(self, name: str) -> ConfigKey:
        return self.by_name[name]

    def __or__(self, other: ConfigDeclaration) -> ConfigDeclaration:
        """Join two declarations; a key of the right side wins over its namesake."""
        return ConfigDeclaration((self.by_name | other.by_name).values())

    def parse(self, texts: Mapping[str, str], written: Mapping[str, str] | None = None) -> Config:
        """Read a config.

        Parameters
        ----------
        texts
            The config, with values from outside in their places.
        written
            The config as it was written: what messages quote, so that none of them shows a value
            from outside.

        Raises
        ------
        ConnectorConfigError
            Naming everything that is wrong with it.
        """
        values, problems = self.read(texts, written)
        if problems:
            raise ConnectorConfigError.of((one.key, one.message) for one in problems)
        return Config(values, texts)

    def problems(self, texts: Mapping[str, str]) -> list[ConfigProblem]:
        """Name everything that is wrong with a config, misspelt keys included."""
        return self.read(texts)[1] + self.misspelt(texts)

    def read(
        self, texts: Mapping[str, str], written: Mapping[str, str] | None = None
    ) -> tuple[dict[str, Any], list[ConfigProblem]]:
        """Read what can be read, and name what cannot; a wrong value counts as ``None``."""
        values: dict[str, Any] = {}
        problems: list[ConfigProblem] = []
        for one in self:
            try:
                values[one.name] = self._value(one, texts, written or texts)
            except ValueError as error:
                values[one.name] = None
                problems.append(ConfigProblem(one.name, str(error)))
        return values, problems

    def value(self, name: str, texts: Mapping[str, str]) -> Any:
        """Return the value of one key; its default where it is missing or wrong.

        >>> declare(key("rows", int, "Most rows.", default=100)).value("rows", {"rows": "many"})
        100
        """
        try:
            return self._value(self[name], texts, texts)
        except ValueError:
            # Validation refuses what is wrong; an older config must not stop the worker.
            return self[name].default

    def _value(self, one: ConfigKey, texts: Mapping[str, str], written: Mapping[str, str]) -> Any:
        given = [name for name in (one.name, *one.aliases) if name in texts]
        if not given:
            if one.required:
                raise ValueError(f"The key {one.name} is missing: {one.doc}")
            return one.default
        if len({texts[name] for name in given}) > 1:
            raise ValueError(
                f"The keys {' and '.join(given)} mean the same and disagree: leave one out."
            )
        try:
            return one.parse(texts[given[0]])
        except ValueError as error:
            shown = MASK if one.secret else repr(written.get(given[0], MASK))
            raise ValueError(f"The key {given[0]} is {shown}: {error}. {one.doc}") from None

    def unknown(self, texts: Mapping[str, str]) -> list[str]:
        """Return the names that nobody declared."""
        known = {name for one in self for name in (one.name, *one.aliases)}
        return [name for name in texts if name not in known]

    def misspelt(self, texts: Mapping[str, str]) -> list[ConfigProblem]:
        """Name the keys that nobody declared and that look like a declared one."""
        known = [name for one in self for name in (one.name, *one.aliases)]
        free = [name for name in known if name not in texts]
        return [
            ConfigProblem(name, f"There is no key {name}: {meant}")
            for name in self.unknown(texts)
            if (meant := did_you_mean(name, free, surely=True))
        ]


def declare(*keys: ConfigKey) -> ConfigDeclaration:
    """Declare the keys of a plugin.

    >>> from headrace.connect.config import key
    >>> declare(key("rows", int, "Most rows of a poll.", default=100)).parse({})["rows"]
    100
    """
    return ConfigDeclaration(keys)


# The declarations of the keys that every connector has.

_NEVER = timedelta(milliseconds=-1)

COMMON = declare(
    key(
        "name",
        str,
        "The connector's name, unique among all connectors.",
        required=True,
        # What lifecycle names allow is decided where they are made; here only what no form takes.
        valid=matching(r"(?s).*\S.*", "a name that is not blank"),
        group="Common",
    ),
    key(
        "connector.class",
        PluginName("connectors"),
        "The connector's class, or one of its other names, such as `file-source`.",
        required=True,
        group="Common",
        width="long",
    ),
    key(
        "tasks.max",
        int,
        "Most tasks that the connector may share its work out to.",
        default=1,
        valid=at_least(1),
        importance="high",
        group="Common",
        width="short",
        aliases=("max.tasks",),
    ),
    key(
        "key.converter",
        PluginName("converters"),
        "How keys become bytes and bytes become keys; its own keys follow after `key.converter.`.",
        group="Common",
        importance="low",
    ),
    key(
        "value.converter",
        PluginName("converters"),
        "How values become bytes and bytes become values; its own keys follow after "
        "`value.converter.`.",
        group="Common",
        importance="low",
    ),
    key(
        "header.converter",
        PluginName("header_converters"),
        "How headers become properties of a message; its own keys follow after "
        "`header.converter.`.",
        group="Common",
        importance="low",
    ),
    key(
        "transforms",
        list,
        "Names of the transforms that every record passes, in this order.",
        default=[],
        group="Transforms",
        importance="low",
    ),
    key(
        "predicates",
        list,
        "Names of the predicates that decide which records a transform sees.",
        default=[],
        group="Predicates",
        importance="low",
    ),
    key(
        "config.action.reload",
        str,
        "What becomes of the connector when a value from outside, such as `${file:...}`, changes: "
        "`restart` starts it and its tasks again within some 10 s; `none` leaves them with the old "
        "value until they are started anew.",
        default="restart",
        valid=one_of("none", "restart", ignore_case=True),
        group="Common",
        importance="low",
    ),
    key(
        "errors.retry.timeout",
        timedelta,
        "How long a failed step is tried again; 0 never, -1 for ever. What waits for a peer that is "
        "away (see status) does so for ever, unless this is set.",
        default=timedelta(0),
        valid=at_least(_NEVER),
        group="Errors",
    ),
    key(
        "errors.retry.delay.max.ms",
        timedelta,
        "Longest pause between two tries; pauses grow from 300 ms to it, and to 5 s while a peer is "
        "away, unless this is set.",
        default=timedelta(minutes=1),
        valid=at_least(_NEVER),
        group="Errors",
    ),
    key(
        "errors.tolerance",
        str,
        "What a record that fails does: `none` stops the task, `all` lets it go on without.",
        default="none",
        valid=one_of("none", "all", ignore_case=True),
        group="Errors",
    ),
    key(
        "errors.log.enable",
        bool,
        "Whether each record that fails is logged, also when it is tolerated.",
        default=False,
        group="Errors",
    ),
    key(
        "errors.log.include.messages",
        bool,
        "Whether that log line holds the record itself.",
        default=False,
        group="Errors",
    ),
    key(
        "task.shutdown.graceful.timeout.ms",
        timedelta,
        "Time that a task or connector may take to stop by itself before it is forced; the "
        "worker's setting where none is given.",
        group="Limits",
        importance="low",
    ),
    key(
        "task.start.timeout.ms",
        timedelta,
        "Time that a task or connector may take to start before it is forced; the worker's "
        "setting where none is given.",
        valid=at_least(timedelta(milliseconds=1)),
        group="Limits",
        importance="low",
    ),
    key(
        "task.memory.mb",
        int,
        "Most memory of a task or connector in megabytes; one that wants more is killed, alone. The "
        "worker's setting where none is given.",
        valid=at_least(1),
        group="Limits",
        importance="low",
    ),
    key(
        "restart.max.attempts",
        int,
        "How often in a row the worker restarts a task or connector that failed: 0 never, -1 "
        "always.",
        default=0,
        valid=at_least(-1),
        group="Restarts",
        importance="low",
    ),
    key(
        "restart.pause.ms",
        timedelta,
        "Pause before the first of these restarts; it doubles each time.",
        default=timedelta(seconds=1),
        group="Restarts",
        importance="low",
    ),
    key(
        "restart.pause.max.ms",
        timedelta,
        "Longest of these pauses; who runs for longer than it is well again.",
        default=timedelta(minutes=1),
        group="Restarts",
        importance="low",
    ),
)

SOURCE = declare(
    key(
        "exactly.once.support",
        str,
        "A source's records and its positions are always one commit. `required` refuses a "
        "connector that does not say that it gives every record again from its positions, as "
        "otherwise some may be missing or doubled in spite of that.",
        default="requested",
        valid=one_of("requested", "required", ignore_case=True),
        group="Exactly once",
        importance="low",
    ),
    key(
        "topic.creation.default.partitions",
        int,
        "Queues of the topics that the source makes, where they are missing.",
        default=4,
        valid=at_least(1),
        group="Topics",
        importance="low",
    ),
)

SINK = declare(
    key(
        "topics",
        list,
        "The topics that the connector reads.",
        default=[],
        importance="high",
        group="Common",
        width="long",
        aliases=("connect.topicnames", "connect.topicname"),
    ),
    key(
        "topics.regex",
        re.Pattern,
        "Reads all topics whose whole name matches, in place of `topics`.",
        importance="high",
        group="Common",
    ),
    key(
        "errors.deadletterqueue.topic.name",
        str,
        "The topic that gets the records that failed, with `errors.tolerance=all`; empty: none.",
        default="",
        group="Errors",
    ),
    key(
        "errors.deadletterqueue.topic.queues",
        int,
        "Queues of that topic where it has to be created.",
        default=8,
        valid=at_least(1),
        group="Errors",
        aliases=(
            "errors.deadletterqueue.write.queue.nums",
            "errors.deadletterqueue.read.queue.nums",
        ),
    ),
    key(
        "errors.deadletterqueue.context.headers.enable",
        bool,
        "Whether dead letters tell in `__connect.errors.*` headers what happened, and where.",
        default=True,
        group="Errors",
        aliases=("errors.deadletterqueue.context.properties.enable",),
    ),
    key(
        "errors.put.tolerance",
        str,
        "What a record does that the sink itself refuses: `none` stops the task; `all` finds the "
        "record by halving the batch, and treats it as `errors.tolerance=all` treats others.",
        default="none",
        valid=one_of("none", "all", ignore_case=True),
        group="Errors",
    ),
    key(
        "consume.from.where",
        str,
        "Where the sink begins in queues of which no offset was ever committed: `first` "
        "(`earliest`), `latest`, or a time with its zone, such as `2026-05-01T12:00:00Z`. A queue "
        "that comes while the sink runs is read from its first message.",
        default="first",
        valid=matching(
            r"(?i)first|earliest|latest|\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)",
            "first, earliest, latest or a time such as 2026-05-01T12:00:00Z",
        ),
        group="Common",
        importance="low",
        aliases=("consumer.override.auto.offset.reset",),
    ),
    key(
        "batch.max.records",
        int,
        "Most records that one call of `put` gets.",
        default=10_000,
        valid=at_least(1),
        group="Limits",
        importance="low",
        aliases=("consumer.override.max.poll.records",),
    ),
    key(
        "batch.max.bytes",
        Size,
        "Most bytes of keys and values that one call of `put` gets; a larger record comes alone.",
        default=16 << 20,
        valid=at_least(1),
        group="Limits",
        importance="low",
    ),
)
