"""Tests that EBNF grammars allow exactly their texts, each read token by token, as a model would write it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from engine.errors import InvalidRequestError
from engine.grammars.ebnf import is_ebnf
from engine.grammars.grammar import GrammarTokens, check_grammar
from engine.structured import StructuredOutput

pytest.importorskip("llguidance")

MODEL = Path(__file__).parents[3] / "examples" / "demo_model"

SQL = """
# As vLLM's documentation writes them.
root ::= select_statement
select_statement ::= "SELECT " column " from " table " where " condition
column ::= "col_1 " | "col_2 "
table ::= "table_1 " | "table_2 "
condition ::= column "= " number
number ::= "1 " | "2 "
"""
ARITHMETIC = r"""
root  ::= (expr "=" ws num "\n")+   # llama.cpp's own example
expr  ::= term ([-+*/] term)*
term  ::= ident
        | num
        | "(" ws expr
          ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
"""

LANGUAGES = {
    "a grammar of vLLM": (SQL, ["SELECT col_1  from table_2  where col_2 = 1 "], ["SELECT col_3 ", "SELECT col_1"]),
    "a grammar of llama.cpp": (ARITHMETIC, ["a=1\n", "(x1 +2)*b=\n 3\n\n4=4\n"], ["a+=1\n", "1a=2\n", "a=1"]),
    "a text that may begin as its end does": ('root ::= [a-z]+ "a"', ["ba", "aa", "banana"], ["a", "ab"]),
    "literals that others begin like": (
        'root ::= ([a-z] | "abc!")+ end\nend ::= "ab" | "abc"',
        ["abcdab", "abc!abc", "abcabc!ab", "aab"],
        ["abc!", "ab!ab", "abd"],
    ),
    "nested pairs": ('root ::= "(" root ")" root | ""', ["", "(())()"], ["(()", ")"]),
    "left recursion": ('root ::= root "," item | item\nitem ::= [0-9]', ["1", "1,2,3"], ["1,", ",1"]),
    "counted repetitions": (
        'root ::= "ab"{2} [x]{0,2} c{1,} (c "d"){0,1} "e"{0}\nc ::= "c"',
        ["ababc", "ababxxcccd"],
        ["abc", "ababxxxc", "ababce", "ababcdcd"],
    ),
    "repeated repetitions": ('root ::= "ab"*+ "c"?*', ["", "abab", "cc"], ["aba"]),
    "classes": (r'root ::= [^a-c\]^"\n] [-x] [+-] [\x41\u00e9] .', ['z-+é"', "0x-A\n"], ["a-+A.", "]-+A.", "zz+A."]),
    "characters of many bytes": ('root ::= "日本" [é-ü]+ "😀"', ["日本éü😀"], ["日é😀", "日本éa😀"]),
    "escapes": (r'root ::= "\"\\\n\x41\u00e9\U0001F600"', ['"\\\nAé😀'], ["nA"]),
    "names of any kind": (
        'root ::= start a-b a_b 1\nstart ::= "s"\na-b ::= "1"\na_b ::= "2"\n1 ::= "3"',
        ["s123"],
        ["s213"],
    ),
    "rules in one line, alternatives in several": (
        'a ::= "x" root ::= a\n | "y"\n\n | "z"',
        ["x", "z"],
        ["xy"],
    ),
    "slashes, hashes and signs in texts": ('root ::= "/" [/#] "#" "::=" # not "this"', ["/##::=", "//#::="], ["/"]),
}


@pytest.fixture(scope="module")
def tokens() -> GrammarTokens:
    tokens = GrammarTokens(MODEL, vocab_size=1024, eos_token_ids=(2,))
    tokens.load()
    return tokens


@pytest.mark.parametrize("name", LANGUAGES)
def test_an_ebnf_grammar_allows_its_texts_and_no_others(tokens: GrammarTokens, name: str) -> None:
    grammar, texts, others = LANGUAGES[name]
    structured = StructuredOutput(grammar=grammar)
    check_grammar(structured)
    assert [text for text in texts if not allows(tokens, structured, text)] == []
    assert [text for text in others if allows(tokens, structured, text)] == []


def allows(tokens: GrammarTokens, structured: StructuredOutput, text: str) -> bool:
    """Return whether a whole text can be written in the tokens that a model would write."""
    matcher = tokens.compile(structured)
    token_ids = tokens._tokens.tokenize_str(text)
    return (
        matcher.num_allowed(token_ids) == len(token_ids) and all(map(matcher.accept, token_ids)) and matcher.accept(2)
    )


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ('a ::= "x"', "line 1: there is no rule root"),
        ('root ::= "x"\n\n  other', "line 3: the rule other is not defined"),
        ('root ::= "x"\nroot ::= "y"', "line 2: the rule root is defined twice"),
        ('root ::= (\n"x"', "line 2: a ( is not closed"),
        ('root ::= (\na ::= "x"', "line 2: a ( is not closed"),
        ('root ::= "x" )', "line 1: a ) has no matching ("),
        ('root ::= | * "x"', "line 1: * follows nothing"),
        ('root ::= "x"{3,2}', "line 1: {3,2} has the minimum 3 and the maximum 2"),
        ("root ::= []", "line 1: [] holds no character"),
        ("root ::= [z-a]", "line 1: the range z-a runs backwards"),
        (r'root ::= "\q"', r"line 1: \q is no known escape"),
        (r'root ::= "\ud83d"', r"line 1: \ud83d is no character"),
        (r"root ::= [\U00110000]", r"line 1: \U00110000 is no character"),
        ('root ::= "x" (= "y")', "line 1: '= \"y\")' is not understood"),
        ('root ::= "x\n', "line 1: '\"x\\n' is not understood"),
        ('"x"\nroot ::= "y"', "line 1: this is outside of a rule; a rule begins with its name and ::="),
        ('| root ::= "y"\nroot ::= "y"', "line 1: this is outside of a rule"),
    ],
)
def test_what_is_wrong_in_an_ebnf_grammar_is_said_with_its_line(grammar: str, reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=re.escape(f"The EBNF grammar cannot be used: {reason}")):
        check_grammar(StructuredOutput(grammar=grammar))


def test_lark_stays_lark() -> None:
    assert not is_ebnf('start: "::=" | /a ::= b/ | name\nname: "x ::= y"\n# root ::= "x"')
    assert is_ebnf('# comment\n\n  root ::= "x"')


def test_rules_in_one_line_count_like_lines() -> None:
    chain = " ".join(f"a{index} ::= a{index + 1}" for index in range(20_001))
    grammar = f'root ::= a0 {chain} a20001 ::= "x"'
    with pytest.raises(InvalidRequestError, match="opening brackets and lines; 20000 are allowed"):
        check_grammar(StructuredOutput(grammar=grammar))
