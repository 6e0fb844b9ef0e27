"""Translates Spark SQL to DuckDB's, for queries that return the same rows on both engines.

A query is parsed by Spark's rules and written by DuckDB's. It may only use the functions in
``SAME``, which tests compare on both engines: DuckDB has functions with names of Spark's that do
something else. Where DuckDB would differ, the query is either rewritten, as for a division by zero,
which is an error, or refused, as for a division of decimals, which has other digits.

A column without a name gets the name that Spark gives it: its expression, functions in lower case
with all arguments, texts without quotes, operators in brackets.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

import sqlglot
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ErrorLevel, ParseError, SqlglotError
from sqlglot.parsers.spark import SparkParser

from ebbflow.domain.errors import EbbflowError
from ebbflow.streams.audit_rows import PLAIN_TABLE

_SIGNS: dict[type[exp.Expr], str] = {
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.Mod: "%",
    exp.IntDiv: "div",
    exp.EQ: "=",
    exp.NullSafeEQ: "<=>",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.And: "AND",
    exp.Or: "OR",
}
_ADDED = {
    "locate": (3, "1"),
    "regexp_extract": (3, "1"),
    "regexp_replace": (4, "1"),
    "round": (2, "0"),
    "split": (3, "-1"),
    "substr": (3, "2147483647"),
    "substring": (3, "2147483647"),
}
"""Functions to which Spark adds a default argument: the number of arguments then, and its value."""
_CAPITALS = frozenset({"ceil", "floor", "power", "regexp_like", "sqrt"})
_NAMES = """
abs any_value avg bool_and bool_or cast ceil coalesce concat concat_ws contains count count_if
current_date current_timestamp date_add date_diff date_format date_sub date_trunc datediff day
dayofmonth dense_rank endswith exists explode extract first floor greatest hour if ifnull instr
lag lead least left length locate lower ltrim max max_by mean median min min_by minute month now
ntile nullif nvl pow power quarter rank regexp_extract regexp_like regexp_replace repeat replace
reverse right round row_number rtrim second sign split sqrt startswith stddev stddev_pop
stddev_samp substr substring substring_index sum to_date to_timestamp trim try_cast unix_micros
unix_millis upper var_pop var_samp variance year
"""
SAME = frozenset(_NAMES.split())
"""The functions that have the same results on both engines."""
_PARTS_OF_SQL = frozenset({"and", "or", "xor", "case", "not"})
_TIMES = frozenset({exp.DType.TIMESTAMP, exp.DType.TIMESTAMPTZ, exp.DType.TIMESTAMPLTZ})
_COLUMNS = frozenset({*PLAIN_TABLE.names, "day", "root", "number", "last_seen", "value"})
_NOW = "MAKE_TIMESTAMP(EPOCH_US(GET_CURRENT_TIMESTAMP()))"
_PATTERN = re.compile(r"(%[YmdHMS](strict)?|[^A-Za-z%])*")
_WITH_ZONE = re.compile(r"\s*\d{4}-\d\d-\d\d[T ]\d+:.*([+-]\d|[A-Ya-y]).*")
_EXTRACTED = frozenset({"YEAR", "QUARTER", "MONTH", "DAY", "HOUR", "MINUTE"})
_DIVISIONS = (exp.Div, exp.Mod, exp.IntDiv)
_FRACTIONS = (exp.Avg, exp.Median, exp.Stddev, exp.StddevPop, exp.StddevSamp, exp.Variance)
_NUMBERS = (
    *(*_DIVISIONS, *_FRACTIONS, exp.Add, exp.Sub, exp.Mul, exp.Neg),
    *(exp.Abs, exp.Ceil, exp.Floor, exp.Pow, exp.Round, exp.Sqrt, exp.Sum, exp.VariancePop),
)


def translate(query: str) -> str:
    """Returns a query of Spark SQL in DuckDB's SQL.

    ``EbbflowError`` if it is not a query, or if only Spark is certain to run it as intended.
    """
    try:
        tree, typed = _parse(query, AnsiSpark), _parse(query, SparkAsTyped)
        _check_functions(typed)
        _name_columns(tree, typed)
        for node in reversed([*tree.walk()]):  # children before their parents
            if (adapted := _adapt(node)) is not node:
                node.replace(adapted)
        return tree.sql("duckdb", identify=True, unsupported_level=ErrorLevel.RAISE)
    except ParseError as error:
        raise refusal(_describe(error)) from None
    except SqlglotError as error:
        raise refusal(str(error)) from None


def refusal(why: str) -> EbbflowError:
    """Returns the error for a query that DuckDB does not run."""
    why = why.strip().rstrip(".!;")
    return EbbflowError(
        f"The query does not work: {why}; --spark runs a query on Spark's own engine."
    )


def _describe(error: ParseError) -> str:
    for found in error.errors:
        what = str(found.get("description")).rstrip(".")
        return f"{what} (line {found.get('line')}, column {found.get('col')})"
    return str(error)


def _parse(query: str, dialect: type[Spark]) -> exp.Query:
    trees = sqlglot.parse(query, dialect=dialect)
    match [tree for tree in trees if tree is not None and not isinstance(tree, exp.Semicolon)]:
        case [exp.Query() as tree] if tree.find(exp.DML) is None:
            return tree
    raise refusal("it is not one SELECT")


def _check_functions(typed: exp.Query) -> None:
    for function in typed.find_all(exp.Func):
        plain = isinstance(function, exp.Anonymous)
        name = (function.name if plain else function.sql_name()).lower()
        if name not in SAME | _PARTS_OF_SQL:
            raise refusal(f"{name}() is not among the functions that run without Spark")


def _name_columns(tree: exp.Query, typed: exp.Query) -> None:
    """Gives each unnamed column of the result the name that Spark gives it."""
    for column, as_typed in zip(_columns_of(tree), _columns_of(typed), strict=True):
        if not (column.is_star or isinstance(column, exp.Alias | exp.Aliases) or _is_plain(column)):
            name = name_column(as_typed, is_whole=True)
            column.replace(exp.alias_(column.copy(), name, quoted=True))


def _is_plain(node: exp.Expr) -> bool:
    # In lower case, the name as typed and the name in the table are the same.
    return isinstance(node, exp.Column) and node.name.islower()


def _columns_of(tree: exp.Expr) -> list[exp.Expr]:
    while not isinstance(tree, exp.Select):
        tree = tree.this
    return [*tree.expressions]


class AnsiParser(SparkParser):
    """Parses a cast as one that fails for an invalid value, as Spark does since version 4."""

    STRICT_CAST = True


class TypedParser(AnsiParser):
    """Leaves the names and arguments of functions as they are typed."""

    FUNCTIONS: ClassVar[dict[str, Any]] = {}
    FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
        name: SparkParser.FUNCTION_PARSERS[name] for name in ("CAST", "TRY_CAST", "EXTRACT", "TRIM")
    }


class AnsiSpark(Spark):
    """Spark SQL since version 4, in which a doubled quote in a text also counts as one quote."""

    Parser = AnsiParser

    class Tokenizer(Spark.Tokenizer):
        """Reads a doubled quote as one."""

        STRING_ESCAPES: ClassVar[list[str]] = ["\\", "'", '"']


class SparkAsTyped(AnsiSpark):
    """The same, but with function calls as typed, for the names of columns."""

    Parser = TypedParser


# --- what DuckDB would do differently -----------------------------------------------------------


def _adapt(node: exp.Expr) -> exp.Expr:
    """Returns a part of a query rewritten so that DuckDB acts like Spark, or refuses it."""
    match node:
        case exp.DataType(this=kind) if kind in _TIMES and not isinstance(node.parent, exp.Cast):
            return exp.DataType.build("TIMESTAMP", dialect="duckdb")
        case exp.CurrentTimestamp() | exp.Anonymous(this="now" | "NOW"):
            return sqlglot.parse_one(_NOW, dialect="duckdb")
        case exp.Cast():
            return _adapt_cast(node)
        case exp.Div() | exp.Mod() | exp.IntDiv():
            node.set("safe", False)
            node.set("expression", _not_zero(node.expression))
        case exp.Substring():
            if (start := node.args.get("start")) is not None and start.name == "0":
                node.set("start", exp.Literal.number(1))
        case exp.SubstringIndex():
            return _adapt_substring_index(node)
        case exp.TsOrDsAdd():
            return exp.cast(node.copy(), "DATE")
        case exp.Round():  # adding 0 turns -0 into 0
            return exp.paren(exp.Add(this=node.copy(), expression=exp.Literal.number(0)))
        case exp.Ceil() | exp.Floor() | exp.Sign():
            return exp.cast(node.copy(), "DOUBLE" if isinstance(node, exp.Sign) else "BIGINT")
        case exp.Add() | exp.Sub() if _is_date(node.left):
            return _adapt_days(node)
    _refuse_other_results(node)
    return node


def _adapt_cast(node: exp.Cast) -> exp.Expr:
    """Returns a cast that truncates numbers and respects the zones of times."""
    kind, value = node.to, node.this.unnest()
    if kind.this in _TIMES:
        node.set("to", exp.DataType.build("TIMESTAMPTZ", dialect="duckdb"))
        return exp.func("MAKE_TIMESTAMP", exp.func("EPOCH_US", node.copy()))
    if kind.is_type(*exp.DataType.INTEGER_TYPES):
        if isinstance(value, exp.Column) and value.name.lower() not in _COLUMNS:
            raise refusal(f"a number of {value.name} may not be whole; use floor or round")
        if isinstance(value, _NUMBERS) or _is_decimal(value):
            node.set("this", exp.func("TRUNC", value.copy()))
    return node


def _not_zero(divisor: exp.Expr) -> exp.Expr:
    if isinstance(divisor, exp.Literal) and divisor.name.strip("0."):
        return divisor
    failure = exp.func("error", exp.Literal.string("Division by zero"))
    zero = exp.EQ(this=exp.paren(divisor), expression=exp.Literal.number(0))
    return exp.paren(exp.case().when(zero, failure).else_(exp.paren(divisor)))


def _adapt_substring_index(node: exp.SubstringIndex) -> exp.Expr:
    """Returns the call as a split, a slice and a join."""
    count = node.args["count"].sql()
    if not re.fullmatch(r"-?[1-9]\d*", count):
        raise refusal("the count of substring_index() is not a number other than 0")
    text, mark = (node.args[name].sql("duckdb", identify=True) for name in ("this", "delimiter"))
    parts = f"[{count}:]" if count.startswith("-") else f"[:{count}]"
    joined = f"ARRAY_TO_STRING(STRING_SPLIT({text}, {mark}){parts}, {mark})"
    return sqlglot.parse_one(joined, dialect="duckdb")


def _is_date(node: exp.Expr) -> bool:
    is_day = isinstance(node, exp.Column) and node.name.lower() == "day"
    is_cast = isinstance(node, exp.Cast) and node.to.is_type("date")
    return is_day or is_cast or isinstance(node, exp.CurrentDate | exp.TsOrDsToDate)


def _adapt_days(node: exp.Binary) -> exp.Expr:
    """Returns a sum of a date and days with the type of a date."""
    if _is_date(node.right):
        raise refusal("a date minus a date is an interval; datediff() counts the days")
    unit = node.right.text("unit").upper().rstrip("S") if node.right.args.get("unit") else ""
    if isinstance(node.right, exp.Interval) and unit in ("DAY", "WEEK", "MONTH", "YEAR"):
        return exp.cast(exp.paren(node.copy()), "DATE")
    return node


def _refuse_other_results(node: exp.Expr) -> None:
    match node:
        case exp.Div() | exp.Avg() | exp.Median() if any(map(_is_decimal, node.walk())):
            raise refusal("decimals would have other digits; write 100e0 in place of 100.0")
        case exp.Extract() if node.name.upper() not in _EXTRACTED:
            raise refusal(f"extract() of {node.name} would have another type")
        case exp.TimeToStr() if not _PATTERN.fullmatch(node.text("format")):
            raise refusal("date_format() may have yyyy, MM, dd, HH, mm and ss only")
        case exp.Bracket() if [index.name for index in node.expressions] != ["0"]:
            raise refusal("an element other than the first may be missing")
        case exp.Lateral() if node.args.get("outer"):
            raise refusal("LATERAL VIEW OUTER would leave rows out")
        case exp.Literal() if _names_zone(node):
            raise refusal(f"write TIMESTAMP '{node.name}' for a time with a zone")


def _is_decimal(node: exp.Expr) -> bool:
    is_literal = isinstance(node, exp.Literal) and not node.is_string
    is_type = isinstance(node, exp.DataType) and node.is_type("decimal")
    return is_type or (is_literal and "." in node.name and "e" not in node.name.lower())


def _names_zone(node: exp.Literal) -> bool:
    is_cast = isinstance(node.parent, exp.Cast)
    return node.is_string and not is_cast and _WITH_ZONE.fullmatch(node.name) is not None


# --- what Spark calls a column -----------------------------------------------------------------


def name_column(node: exp.Expr, *, is_whole: bool = False) -> str:
    """Returns Spark's name for an expression; ``is_whole`` if it is a whole column."""
    match node:
        case exp.Column() | exp.Literal():
            return node.name
        case exp.Paren():
            return name_column(node.this, is_whole=is_whole)
        case exp.Boolean() | exp.Null():
            return "NULL" if isinstance(node, exp.Null) else str(node.this).lower()
        case exp.Anonymous():
            return _name_call(node)
        case exp.Cast(this=exp.Column()) if is_whole and not isinstance(node, exp.TryCast):
            return str(node.this.name)
        case exp.Cast():
            word = "TRY_CAST" if isinstance(node, exp.TryCast) else "CAST"
            return f"{word}({name_column(node.this)} AS {node.to.sql('spark')})"
    return _name_operator(node) or node.sql("spark", normalize_functions="lower")


def _name_call(node: exp.Anonymous) -> str:
    name = node.name.lower()
    if name == "explode":
        return "col"
    words = ["1" if isinstance(word, exp.Star) else name_column(word) for word in node.expressions]
    count, default = _ADDED.get(name, (0, ""))
    words += [default] if len(words) == count - 1 else []
    return f"{name.upper() if name in _CAPITALS else name}({', '.join(words)})"


def _name_operator(node: exp.Expr) -> str | None:
    match node:
        case exp.Distinct():
            return f"DISTINCT {_join(node.expressions)}"
        case exp.NEQ():
            return f"(NOT ({name_column(node.left)} = {name_column(node.right)}))"
        case exp.Binary() if type(node) in _SIGNS:
            sign = _SIGNS[type(node)]
            return f"({name_column(node.left)} {sign} {name_column(node.right)})"
        case exp.Like():
            return f"{name_column(node.this)} LIKE {name_column(node.expression)}"
        case exp.RegexpLike():
            return f"RLIKE({name_column(node.this)}, {name_column(node.expression)})"
        case exp.Neg():
            is_number = isinstance(node.this, exp.Literal)
            return f"-{node.this.name}" if is_number else f"(- {name_column(node.this)})"
        case exp.Not(this=exp.Is()):
            return f"({name_column(node.this.this)} IS NOT NULL)"
        case exp.Is():
            return f"({name_column(node.this)} IS {name_column(node.expression)})"
        case exp.Not():
            return f"(NOT {name_column(node.this)})"
    return _name_choice(node)


def _name_choice(node: exp.Expr) -> str | None:
    match node:
        case exp.In() if node.expressions:
            return f"({name_column(node.this)} IN ({_join(node.expressions)}))"
        case exp.Between():
            ends = [node.this, node.args["low"], node.args["high"]]
            return f"between({_join(ends)})"
        case exp.Bracket():
            return f"{name_column(node.this)}[{_join(node.expressions)}]"
        case exp.Filter():
            where = name_column(node.expression.this)
            return f"{name_column(node.this)} FILTER (WHERE {where})"
        case exp.If():
            parts = [node.this, node.args["true"], node.args.get("false") or exp.null()]
            return f"(IF({_join(parts)}))"
        case exp.Case():
            return _name_case(node)
    return None


def _name_case(node: exp.Case) -> str:
    words = ["CASE"]
    for part in node.args["ifs"]:
        is_short = node.this is not None
        when = exp.EQ(this=node.this.copy(), expression=part.this.copy()) if is_short else part.this
        words += ["WHEN", name_column(when), "THEN", name_column(part.args["true"])]
    if default := node.args.get("default"):
        words += ["ELSE", name_column(default)]
    return " ".join([*words, "END"])


def _join(nodes: Sequence[exp.Expr]) -> str:
    return ", ".join(map(name_column, nodes))
