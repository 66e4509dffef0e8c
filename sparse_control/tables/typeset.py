"""Text as LaTeX and HTML print it. Every string that a template prints goes through one of these functions."""

import re
import unicodedata
from collections.abc import Callable

from markupsafe import Markup, escape

_TEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\textquotedbl{}", "`": r"\textasciigrave{}",
    "[": "{[}", "]": "{]}", "*": "{*}",       # after a row break, and in a caption, these delimit arguments
    "—": "---", "–": "--", "−": r"\ensuremath{-}", "±": r"\ensuremath{\pm}", "≤": r"\ensuremath{\le}",
    "≥": r"\ensuremath{\ge}", "×": r"\ensuremath{\times}", "ρ": r"\ensuremath{\rho}", "λ": r"\ensuremath{\lambda}",
    "Δ": r"\ensuremath{\Delta}", "Σ": r"\ensuremath{\Sigma}",
    "α": r"\ensuremath{\alpha}", "β": r"\ensuremath{\beta}", "γ": r"\ensuremath{\gamma}",
    "ε": r"\ensuremath{\varepsilon}", "ℓ": r"\ensuremath{\ell}", "→": r"\ensuremath{\to}",
}  # fmt: skip


def escape_tex(value: object) -> str:
    """Any value as LaTeX that prints it: special characters escaped, what the fonts lack as its code point."""
    text = re.sub(r"([-,'])(?=\1)", "\\1\0", str(value))  # doubled they are ligatures; the mark keeps them apart
    return "".join(map(_escape_character, text))


def _escape_character(character: str) -> str:
    if character == "\0":
        return "{}"
    if character in _TEX:
        return _TEX[character]
    if " " <= character <= "~" or ("À" <= character <= "ÿ" and character not in "×÷"):
        return character
    if unicodedata.category(character) in ("Cc", "Zs", "Zl", "Zp"):
        return " "
    return f"{{[}}U+{ord(character):04X}{{]}}"


# symbols of captions and headings, and powers of ten, as the text of a table has them
_SYMBOL = re.compile(r"\b(E|C)_(F|vec|ISS)\b|\b(Rel)_(tar)\b|(?<=\d)e([−+]\d+)\b")


def typeset_tex(value: object) -> str:
    """`escape_tex`, with the symbols of the tables as mathematics."""

    def symbol(match: re.Match[str]) -> str:
        if match[5]:
            return rf"\ensuremath{{\cdot10^{{{match[5].replace('−', '-').lstrip('+')}}}}}"
        letter, index = (match[1], match[2]) if match[1] else (r"\mathrm{Rel}", match[4])
        index = index if index == "F" else rf"\mathrm{{{index}}}"
        return rf"\ensuremath{{{letter}_{{{index}}}}}"

    return _around_symbols(str(value), escape_tex, symbol)


def typeset_html(value: object) -> Markup:
    """Escaped text, with the symbols of the tables as mathematics."""

    def symbol(match: re.Match[str]) -> str:
        if match[5]:
            return f"·10<sup>{match[5].lstrip('+')}</sup>"
        letter, index = (match[1], match[2]) if match[1] else (match[3], match[4])
        return f"<i>{letter}</i><sub>{index}</sub>"

    return Markup(_around_symbols(str(value), lambda text: str(escape(text)), symbol))


def _around_symbols(text: str, plain: Callable[[str], str], symbol: Callable[[re.Match[str]], str]) -> str:
    parts, end = [], 0
    for match in _SYMBOL.finditer(text):
        parts += [plain(text[end : match.start()]), symbol(match)]
        end = match.end()
    return "".join([*parts, plain(text[end:])])
