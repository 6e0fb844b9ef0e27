"""What Spark calls the columns of a query that have no name: their expressions in its own words.

Functions are in small letters with all arguments, texts without quotes, operators in brackets.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

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
"""Functions to whose arguments Spark adds one that has a default: how many they are then."""
_CAPITALS = frozenset({"ceil", "floor", "power", "regexp_like", "sqrt"})


def name_column(node: exp.Expr, *, is_whole: bool = False) -> str:
    """Returns what Spark calls an expression; ``is_whole`` says that it is a whole column."""
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
