"""SQL over one stream: a select statement is turned into expressions.

Anything that a running stream cannot give, or that is not supported, is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.columns.aggregates import ColumnMeasure
from headrace.columns.expressions import Call, Name, Node, Value
from headrace.errors import TopologyError
from headrace.spelling import did_you_mean

if TYPE_CHECKING:
    from sqlglot import exp


Named = tuple[tuple[str, Node], ...]


@dataclass(frozen=True, slots=True)
class Query:
    """A select statement over one stream."""

    table: str
    where: Node | None
    #: Columns of the key; empty where nothing is grouped.
    keys: Named
    measures: tuple[ColumnMeasure, ...]
    #: A condition over the key and the measures.
    having: Node | None
    #: What comes out: of the key and the measures where something is grouped; empty for all.
    columns: Named


def parse(text: str) -> Query:
    """Read a select statement.

    Raises
    ------
    TopologyError
        If it is not SQL, or asks for something that streams cannot do.

    Examples
    --------
    >>> query = parse("select city, count(*) as n from orders where price > 3 group by city")
    >>> query.table, str(query.where), query.keys[0][0], str(query.measures[0])
    ('orders', 'greater(price, 3)', 'city', 'count()')
    """
    try:
        import sqlglot
    except ImportError as error:
        raise TopologyError(
            "sql() needs the package sqlglot", hint="pip install 'headrace[sql]'"
        ) from error
    try:
        statement = sqlglot.parse_one(text)
    except sqlglot.errors.SqlglotError as error:
        raise TopologyError(
            f"this is no SQL that can be read: {str(error).splitlines()[0]}",
            hint="see docs/guides/build/columns.md for what sql() takes",
        ) from None
    if not isinstance(statement, sqlglot.exp.Select):
        raise _refused(statement, "sql() takes one select statement")
    return _StatementReader(statement).query()


def _refused(node: Any, why: str) -> TopologyError:
    return TopologyError(
        f"{why}: {node.sql()[:200]}",
        hint="see docs/guides/build/columns.md for what sql() takes; other steps can stand before"
        " and behind it",
    )


def _unknown(item: Any) -> str:
    """Return the text of the error about an item that ``sql()`` does not know."""
    kind = type(item).__name__
    if kind == "Window":
        return "sql() does not know window functions"
    if kind != "Anonymous":
        return f"sql() does not know {kind}"
    name = str(item.this).lower()
    if name in ("tumble", "hop", "session"):
        return f"sql() does not know {name}: group_by(...).window(...).agg(...) gathers by time"
    functions = {call for call, _ in _CALLS.values()} | {*_MEASURES.values(), "coalesce", "round"}
    return f"sql() has no function '{name}'; {did_you_mean(name, functions)}".rstrip("; ")


#: Parts of a statement that are read; any other part is refused.
_PARTS = frozenset({"expressions", "from_", "from", "where", "group", "having", "kind", "hint"})

#: Function by the name of the parser's class, and the names of its arguments, in our order.
_CALLS: dict[str, tuple[str, tuple[str, ...]]] = {
    "Abs": ("abs", ("this",)),
    "Add": ("add", ("this", "expression")),
    "And": ("and", ("this", "expression")),
    "DPipe": ("concat", ("this", "expression")),
    "Div": ("divide", ("this", "expression")),
    "EQ": ("equal", ("this", "expression")),
    "EndsWith": ("ends_with", ("this", "expression")),
    "Explode": ("explode", ("this",)),
    "GT": ("greater", ("this", "expression")),
    "GTE": ("greater_equal", ("this", "expression")),
    "IntDiv": ("floor_divide", ("this", "expression")),
    "LT": ("less", ("this", "expression")),
    "LTE": ("less_equal", ("this", "expression")),
    "Length": ("length", ("this",)),
    "Like": ("like", ("this", "expression")),
    "Lower": ("lower", ("this",)),
    "Mod": ("modulo", ("this", "expression")),
    "Mul": ("multiply", ("this", "expression")),
    "NEQ": ("not_equal", ("this", "expression")),
    "Neg": ("negate", ("this",)),
    "Not": ("not", ("this",)),
    "Or": ("or", ("this", "expression")),
    "Replace": ("replace", ("this", "expression", "replacement")),
    "StartsWith": ("starts_with", ("this", "expression")),
    "Sub": ("subtract", ("this", "expression")),
    "Trim": ("strip", ("this",)),
    "Upper": ("upper", ("this",)),
}
_MEASURES: dict[str, Any] = {
    "Avg": "avg",
    "Count": "count",
    "Max": "max",
    "Min": "min",
    "Sum": "sum",
}
_CASTS = {
    "BIGINT": "int",
    "BOOLEAN": "bool",
    "DATE": "date",
    "DOUBLE": "float",
    "FLOAT": "float",
    "INT": "int",
    "SMALLINT": "int",
    "TEXT": "string",
    "TIMESTAMP": "timestamp",
    "TIMESTAMPTZ": "timestamp",
    "VARCHAR": "string",
}


class _StatementReader:
    """Reads one statement; measures are gathered as they are met."""

    def __init__(self, statement: exp.Select) -> None:
        self._statement = statement
        self._measures: dict[tuple[Any, Node | None], str] = {}
        self._keys: dict[Node, str] = {}
        self._exceptions: dict[str, Callable[[Any], Node]] = {
            "Between": self._between,
            "Boolean": lambda node: Value(bool(node.this)),
            "Case": self._case,
            "Cast": self._cast,
            "Coalesce": lambda node: self._call("coalesce", [node.this, *node.expressions]),
            "Column": self._column,
            "Concat": lambda node: self._call("concat", node.expressions),
            "If": lambda node: self._choice(node, node.args.get("false")),
            "In": self._in,
            "Is": self._is,
            "Literal": _literal,
            "Null": lambda _: Value(None),
            "Paren": lambda node: self._node(node.this),
            "Round": self._round,
            "Split": self._split,
            "Substring": self._substring,
        }

    def query(self) -> Query:
        statement = self._statement
        for part, given in statement.args.items():
            if given and part not in _PARTS:
                shown = given[0] if isinstance(given, list) else given
                name = part.rstrip("_").upper()
                raise _refused(statement, f"sql() takes no {name} ({shown})")
        self._table = self._read_table()
        where = statement.args.get("where")
        condition = None if where is None else self._node(where.this)
        if self._measures:
            raise _refused(where, "an aggregate stands behind having, not in where")
        group = statement.args.get("group")
        items = list(self._items())
        aggregates = group is not None or any(
            type(node).__name__ in _MEASURES for _, item in items for node in item.walk()
        )
        if not aggregates:
            if statement.args.get("having"):
                raise _refused(statement, "having needs group by")
            return Query(self._table, condition, (), (), None, self._columns(items))
        return self._grouped(condition, group, items)

    def _grouped(
        self, where: Node | None, group: exp.Group | None, items: list[tuple[str, exp.Expression]]
    ) -> Query:
        if group is None:
            raise _refused(self._statement, "an aggregate needs group by")
        extra = [part for part, given in group.args.items() if given and part != "expressions"]
        if extra:
            raise _refused(group, f"group by takes expressions only, no {extra[0]}")
        if not items:
            raise _refused(self._statement, "select * does not go with group by")
        aliases = dict(items)
        keys: list[tuple[str, Node]] = []
        for place, given in enumerate(group.expressions):
            # A name may be that of a result column, and then means that column's expression.
            node = self._node(aliases.get(given.name, given))
            if isinstance(node, Value):
                raise _refused(given, "group by takes columns, not their numbers")
            named = next((name for name, item in items if self._plain(item) == node), None)
            name = named or (node.name if isinstance(node, Name) else f"key_{place}")
            keys.append((name, node))
        if self._measures:
            raise _refused(group, "an aggregate cannot be a key")
        self._keys = {node: name for name, node in keys}
        columns = self._columns(items)
        having = self._statement.args.get("having")
        condition = None if having is None else self._node(having.this)
        measures = tuple(
            ColumnMeasure(kind, argument, name) for (kind, argument), name in self._measures.items()
        )
        if not measures:
            raise _refused(self._statement, "group by needs an aggregate, such as count(*)")
        known = {*self._keys.values(), *self._measures.values()}
        for node in [node for _, node in columns] + ([condition] if condition else []):
            for name in _names(node):
                if name not in known:
                    raise _refused(
                        self._statement, f"'{name}' is neither in group by nor in an aggregate"
                    )
        return Query(self._table, where, tuple(keys), measures, condition, columns)

    def _plain(self, item: exp.Expression) -> Node | None:
        """Return the node of an item without aggregates."""
        if any(type(node).__name__ in _MEASURES for node in item.walk()):
            return None
        return self._node(item)

    def _read_table(self) -> str:
        origin = self._statement.args.get("from_") or self._statement.args.get("from")
        if origin is None:
            raise _refused(self._statement, "from must name a stream")
        table = origin.this
        plain = type(table).__name__ == "Table" and type(table.this).__name__ == "Identifier"
        if not plain or table.args.get("db") or table.args.get("joins"):
            raise _refused(origin, "from takes the name of one stream")
        self._aliases = {str(table.name), str(table.alias_or_name)}
        return str(table.name)

    def _items(self) -> Iterator[tuple[str, exp.Expression]]:
        expressions = self._statement.expressions
        for item in expressions:
            kind = type(item).__name__
            if kind == "Star":
                if len(expressions) > 1:
                    raise _refused(self._statement, "* stands alone")
                return
            if kind == "Alias":
                yield str(item.alias), item.this
            elif kind == "Column":
                yield str(item.name), item
            elif kind in _MEASURES:
                yield ColumnMeasure(_MEASURES[kind], self._argument(item)).column, item
            elif kind in ("Anonymous", "Window"):
                raise _refused(item, _unknown(item))
            else:
                raise _refused(item, "a computed column needs a name, as in price * 2 as twice")

    def _columns(self, items: list[tuple[str, exp.Expression]]) -> Named:
        return tuple((name, self._node(item)) for name, item in items)

    def _node(self, item: Any) -> Node:
        """Translate an expression; one that equals a key becomes the key's column."""
        kind = type(item).__name__
        if kind in _MEASURES:
            return self._measure(item)
        if kind in _CALLS:
            function, arguments = _CALLS[kind]
            self._check(item, {*arguments, "safe", "typed", "big_int"})
            node: Node = self._call(function, [item.args[name] for name in arguments])
        elif kind in self._exceptions:
            node = self._exceptions[kind](item)
        else:
            raise _refused(item, _unknown(item))
        key = self._keys.get(node)
        return node if key is None else Name(key)

    def _check(self, item: Any, known: set[str]) -> None:
        for part, given in item.args.items():
            if given and part not in known:
                raise _refused(item, f"{type(item).__name__} takes no {part} here")

    def _call(self, function: str, arguments: list[Any]) -> Call:
        return Call(function, tuple(map(self._node, arguments)))

    def _argument(self, item: Any) -> Node | None:
        self._check(item, {"this", "big_int"})
        if type(item.this).__name__ == "Distinct":
            raise _refused(item, "an aggregate takes no distinct")
        if type(item.this).__name__ in {"Star", "NoneType"}:
            return None
        keys, self._keys = self._keys, {}
        try:
            return self._node(item.this)
        finally:
            self._keys = keys

    def _measure(self, item: Any) -> Node:
        measure = (_MEASURES[type(item).__name__], self._argument(item))
        name = self._measures.setdefault(measure, f"measure_{len(self._measures)}")
        return Name(name)

    def _column(self, item: Any) -> Node:
        if item.table and item.table not in self._aliases:
            raise _refused(item, f"there is no stream '{item.table}' in this statement")
        return Name(str(item.name))

    def _between(self, item: Any) -> Node:
        low = self._call("greater_equal", [item.this, item.args["low"]])
        return Call("and", (low, self._call("less_equal", [item.this, item.args["high"]])))

    def _in(self, item: Any) -> Node:
        self._check(item, {"this", "expressions"})
        return self._call("is_in", [item.this, *item.expressions])

    def _is(self, item: Any) -> Node:
        if type(item.expression).__name__ == "Null":
            return self._call("is_null", [item.this])
        return Call(
            "coalesce", (self._call("equal", [item.this, item.expression]), Value(value=False))
        )

    def _case(self, item: Any) -> Node:
        node = self._node(item.args["default"]) if item.args.get("default") else Value(None)
        for choice in reversed(item.args["ifs"]):
            condition = self._node(choice.this)
            if item.this is not None:
                condition = Call("equal", (self._node(item.this), condition))
            node = Call("if_else", (condition, self._node(choice.args["true"]), node))
        return node

    def _choice(self, item: Any, otherwise: Any) -> Node:
        last = Value(None) if otherwise is None else self._node(otherwise)
        return Call("if_else", (self._node(item.this), self._node(item.args["true"]), last))

    def _cast(self, item: Any) -> Node:
        name = item.to.this.name
        if name not in _CASTS:
            raise _refused(item, f"cast knows {', '.join(sorted(_CASTS))}, not {name}")
        return Call("cast", (self._node(item.this), Value(_CASTS[name])))

    def _round(self, item: Any) -> Node:
        digits = item.args.get("decimals")
        return Call("round", (self._node(item.this), self._node(digits) if digits else Value(0)))

    def _split(self, item: Any) -> Node:
        separator = item.args.get("expression")
        last = Value(None) if separator is None else self._node(separator)
        return Call("split", (self._node(item.this), last))

    def _substring(self, item: Any) -> Node:
        start, length = self._node(item.args["start"]), item.args.get("length")
        if not isinstance(start, Value) or start.value < 1:
            raise _refused(item, "substring begins at a number of 1 or more")
        size = Value(None) if length is None else self._node(length)
        return Call("substring", (self._node(item.this), Value(start.value - 1), size))


def _literal(item: Any) -> Node:
    text = str(item.this)
    if item.is_string:
        return Value(text)
    return Value(int(text) if text.isdigit() else float(text))


def _names(node: Node) -> Iterator[str]:
    if isinstance(node, Name):
        yield node.name
    elif isinstance(node, Call):
        for argument in node.arguments:
            yield from _names(argument)
