"""
The grammar of SQL92 subscriptions, for lark; ``sql.py`` evaluates the expressions.

The rule: it accepts everything that RocketMQ's SelectorParser accepts, and more in two cases. NOT binds weaker than a
comparison, as in SQL, whereas RocketMQ takes ``NOT a = 1`` as a comparison of ``NOT a`` with 1. The text operators of
RocketMQ 5 are known. Every pattern takes time linear in the length of the text. Keywords may be in any case and end
where a name could not continue.
"""

from typing import Final

GRAMMAR: Final = r"""
start: disjunction

?disjunction: conjunction (_OR conjunction)*
?conjunction: negation (_AND negation)*
?negation: _NOT negation -> not_
    | equality

?equality: comparison
    | equality "=" comparison -> equal
    | equality "<>" comparison -> not_equal
    | equality _IS _NULL -> is_null
    | equality _IS _NOT _NULL -> is_not_null

?comparison: operand
    | comparison ">" operand -> greater
    | comparison ">=" operand -> greater_equal
    | comparison "<" operand -> less
    | comparison "<=" operand -> less_equal
    | comparison _BETWEEN operand _AND operand -> between
    | comparison _NOT _BETWEEN operand _AND operand -> not_between
    | comparison _IN "(" STRING ("," STRING)* ")" -> in_
    | comparison _NOT _IN "(" STRING ("," STRING)* ")" -> not_in
    | comparison _CONTAINS STRING -> contains
    | comparison _NOT _CONTAINS STRING -> not_contains
    | comparison _STARTSWITH STRING -> starts_with
    | comparison _NOT _STARTSWITH STRING -> not_starts_with
    | comparison _ENDSWITH STRING -> ends_with
    | comparison _NOT _ENDSWITH STRING -> not_ends_with

?operand: "+" operand -> plus
    | "-" operand -> minus
    | STRING -> text
    | FLOAT -> float_
    | INTEGER -> integer
    | TRUE -> true
    | FALSE -> false
    | _NULL -> null
    | NAME -> property
    | "(" disjunction ")" -> nested

_AND.3: /AND(?![a-z0-9_$])/i
_OR.3: /OR(?![a-z0-9_$])/i
_NOT.3: /NOT(?![a-z0-9_$])/i
_IS.3: /IS(?![a-z0-9_$])/i
_IN.3: /IN(?![a-z0-9_$])/i
_BETWEEN.3: /BETWEEN(?![a-z0-9_$])/i
_CONTAINS.3: /CONTAINS(?![a-z0-9_$])/i
_STARTSWITH.3: /STARTSWITH(?![a-z0-9_$])/i
_ENDSWITH.3: /ENDSWITH(?![a-z0-9_$])/i
_NULL.3: /NULL(?![a-z0-9_$])/i
TRUE.3: /TRUE(?![a-z0-9_$])/i
FALSE.3: /FALSE(?![a-z0-9_$])/i
FLOAT.2: /(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|[0-9]+e[+-]?[0-9]+/i
INTEGER.1: /(?:0|[1-9][0-9]*)l?(?![a-z0-9_$])/i
STRING: /'(?:''|[^'])*'/
NAME: /(?!(?:AND|OR|NOT|IS|IN|BETWEEN|NULL|TRUE|FALSE)(?![a-z0-9_$]))[a-z_$][a-z0-9_$]*/i

%ignore /[ \t\r\n\f]+/
%ignore /--[^\r\n]*/
%ignore /\/\*(?:[^*]|\*(?!\/))*+\*\//
"""
