"""Spark SQL as DuckDB runs it, for queries that come to the same rows on both engines.

A query is parsed by Spark's rules and written by DuckDB's. It may use the functions of ``SAME``
only, which tests compare on both engines: DuckDB has functions that are called as Spark's are and
do something else. What DuckDB would answer differently by itself is rewritten: a division by zero is
an error, times are in UTC, and a column without a name gets the one that Spark gives it.
"""

from __future__ import annotations

from collections.abc import Iterator

import sqlglot
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ErrorLevel, ParseError, SqlglotError

from ebbflow.errors import EbbflowError

SAME = frozenset(
    "abs any_value avg bool_and bool_or cast ceil coalesce concat concat_ws contains count count_if "
    "current_date current_timestamp date_add date_diff date_format date_sub date_trunc datediff day "
    "dayofmonth dense_rank endswith every exists explode extract first floor greatest hour if "
    "ifnull instr isnotnull isnull lag lead least left length like locate lower ltrim max max_by "
    "mean median min min_by minute month now ntile nullif nvl percentile pow power quarter rank "
    "regexp_extract regexp_like regexp_replace repeat replace reverse right round row_number rtrim "
    "second sign some split sqrt startswith stddev stddev_pop stddev_samp substr substring "
    "substring_index sum to_date to_timestamp trim try_cast unix_micros unix_millis upper "
    "var_pop var_samp variance year".split()
)
"""The functions that have the same results on both engines."""
_PARTS_OF_SQL = frozenset({"and", "or", "xor", "case", "array", "not"})
_TIMES = frozenset({exp.DType.TIMESTAMPTZ, exp.DType.TIMESTAMPLTZ})
_NOW = "MAKE_TIMESTAMP(EPOCH_US(GET_CURRENT_TIMESTAMP()))"
_BY_ZERO = "Division by zero"
_SIGNS: dict[type[exp.Expr], str] = {
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.Mod: "%",
    exp.EQ: "=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.And: "AND",
    exp.Or: "OR",
}


class AnsiSpark(Spark):
    """Spark SQL since version 4: a cast that does not work is an error."""

    class Parser(Spark.Parser):
        """As above."""

        STRICT_CAST = True


class SparkAsTyped(AnsiSpark):
    """The same, with functions as they are typed."""

    class Parser(AnsiSpark.Parser):
        """As above."""

        FUNCTIONS = {}  # noqa: RUF012


def translate(query: str) -> str:
    """Returns a query of Spark SQL as one of DuckDB's.

    ``EbbflowError`` if it is no query, or one that only Spark is sure to run as it is meant.
    """
    try:
        tree, typed = _parse(query, AnsiSpark), _parse(query, SparkAsTyped)
        _check_functions(typed)
        _name_columns(tree, typed)
        adapted = tree.transform(_adapt)
        return adapted.sql("duckdb", identify=True, unsupported_level=ErrorLevel.RAISE)
    except ParseError as error:
        raise refusal(_describe(error)) from None
    except SqlglotError as error:
        raise refusal(str(error)) from None


def refusal(why: str) -> EbbflowError:
    """Returns the error for a query that DuckDB does not run."""
    why = why.strip().rstrip(".!;")
    return EbbflowError(
        f"The query does not work: {why}; --spark runs it on Spark's own engine, which may."
    )


def _describe(error: ParseError) -> str:
    for found in error.errors:
        place = f"(line {found.get('line')}, column {found.get('col')})"
        return f"{found.get('description')} {place}".replace("..", ".")
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


# --- what DuckDB would do differently -----------------------------------------------------------


def _adapt(node: exp.Expr) -> exp.Expr:
    """Returns a part of a query so that DuckDB does what Spark does."""
    match node:
        case exp.DataType(this=kind) if kind in _TIMES:
            return exp.DataType.build("TIMESTAMP", dialect="duckdb")
        case exp.CurrentTimestamp() | exp.Anonymous(this="now" | "NOW"):
            return sqlglot.parse_one(_NOW, dialect="duckdb")
        case exp.Div() | exp.Mod() | exp.IntDiv():
            node.set("safe", False)
            node.set("expression", _not_zero(node.expression))
    return node


def _not_zero(divisor: exp.Expr) -> exp.Expr:
    if isinstance(divisor, exp.Literal) and divisor.name.strip("0."):
        return divisor
    failure = exp.Anonymous(this="error", expressions=[exp.Literal.string(_BY_ZERO)])
    zero = exp.EQ(this=exp.paren(divisor), expression=exp.Literal.number(0))
    return exp.paren(exp.case().when(zero, failure).else_(exp.paren(divisor)))


# --- the names of columns -----------------------------------------------------------------------


def _name_columns(tree: exp.Query, typed: exp.Query) -> None:
    """Gives each column of the result that has no name the one that Spark gives it."""
    for column, as_typed in zip(_columns_of(tree), _columns_of(typed), strict=True):
        if not column.is_star and not isinstance(column, exp.Alias | exp.Aliases):
            column.replace(exp.alias_(column.copy(), name_column(as_typed), quoted=True))


def _columns_of(tree: exp.Expr) -> list[exp.Expr]:
    while not isinstance(tree, exp.Select):
        tree = tree.this
    return tree.expressions


def name_column(node: exp.Expr) -> str:
    """Returns what Spark calls a column that is this expression."""
    match node:
        case exp.Column() | exp.Literal():
            return node.name
        case exp.Paren():
            return name_column(node.this)
        case exp.Anonymous():
            return f"{node.name.lower()}({_join(node.expressions, star='1')})"
        case exp.Distinct():
            return f"DISTINCT {_join(node.expressions)}"
        case exp.Cast():
            return f"CAST({name_column(node.this)} AS {node.to.sql('spark')})"
        case exp.If():
            parts = [node.this, node.args["true"], node.args.get("false") or exp.null()]
            return f"(IF({_join(parts)}))"
        case exp.Binary() if type(node) in _SIGNS:
            left, right = name_column(node.left), name_column(node.right)
            return f"({left} {_SIGNS[type(node)]} {right})"
    return node.sql("spark", normalize_functions="lower")


def _join(nodes: list[exp.Expr], star: str = "*") -> str:
    return ", ".join(_each_name(nodes, star))


def _each_name(nodes: list[exp.Expr], star: str) -> Iterator[str]:
    for node in nodes:
        yield star if isinstance(node, exp.Star) else name_column(node)
