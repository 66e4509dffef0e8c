"""Running prose from MediaWiki markup: what a reader sees of a page, without tables, lists, notes and formulas."""

import re
from collections.abc import Iterator

import mwparserfromhell
from mwparserfromhell.nodes import ExternalLink, Heading, HTMLEntity, Tag, Template, Text, Wikilink

OMITTED = "\x00"  # stands for something a sentence cannot do without; a line that holds it is left out

BACK_MATTER = frozenset(
    "see also|references|notes|footnotes|citations|sources|bibliography|further reading|external links|works cited|"
    "notes and references|references and notes|gallery|works|publications|discography|filmography|"
    "primary sources".split("|")
)
HIDDEN_NAMESPACES = frozenset({"file", "image", "category", "media", "template", "special"})
DROPPED_TAGS = frozenset({"ref", "references", "gallery", "table", "timeline", "imagemap", "hr", "div", "score"})
UNSPEAKABLE_TAGS = frozenset({"math", "chem", "code", "pre", "source", "syntaxhighlight", "li", "dt", "dd", "ce"})
VERBATIM_TEMPLATES = {
    "ndash": "–", "mdash": "—", "spaced ndash": " – ", "snd": " – ", "nbsp": " ", "space": " ", "'": "'", "'s": "'s",
    "–": " – ", "ae": "AE", "bce": "BCE", "ce": "CE", "circa": "c. ", "c.": "c. ", "frac": OMITTED, "sfrac": OMITTED,
    "math": OMITTED, "mvar": OMITTED, "chem": OMITTED, "e": OMITTED, "val": OMITTED, "gaps": OMITTED,
}  # fmt: skip
FIRST_ARGUMENT = frozenset(
    "nowrap|nobr|small|smaller|smallcaps|sc|var|quotation|quote|sic|as of|visible anchor|vanchor|"
    "nihongo|angbr|flag".split("|")
)
LAST_ARGUMENT = frozenset({"lang", "transl", "transliteration", "abbr"})
UNITS = frozenset({"convert", "cvt"})

_MARKUP_LEFT = re.compile(r"\{\{|\}\}|\[\[|\]\]|\{\||\|\}|</?[a-z]|__[A-Z]+__|https?://|'''")
_EMPTY_BRACKETS = re.compile(r"\s*[(\[]\s*(?:[;,:–\s]|\bor\b|\band\b)*\s*[)\]]")
_BRACKET_START = re.compile(r"\(\s*(?:[;,:]\s*)+")
_BRACKET_END = re.compile(r"(?:\s*[;,:])+\s*\)")
_SPACES = re.compile(r"[ \t\u00a0\u2009\u202f]+")
_BEFORE_PUNCTUATION = re.compile(r" +([,.;:!?)])")


def paragraphs(markup: str) -> list[str]:
    """The prose paragraphs of a page, in order, one line each.

    Left out: headings, lists, indented lines, tables, notes, pictures, back matter (references, see also, ...), and
    every line from which a formula, a piece of code or another part of a sentence would be missing.
    """
    lines = "".join(_visible(mwparserfromhell.parse(markup))).split("\n")
    return [line for line in map(_tidy, lines) if line and OMITTED not in line and not _MARKUP_LEFT.search(line)]


def _visible(page: mwparserfromhell.wikicode.Wikicode) -> Iterator[str]:
    skipped_level = None
    for node in page.nodes:
        if isinstance(node, Heading):
            title = _render(node.title).strip().casefold()
            if skipped_level is None or node.level <= skipped_level:
                skipped_level = node.level if title in BACK_MATTER else None
            yield "\n"
        elif skipped_level is None:
            yield _node(node)


def _render(code: mwparserfromhell.wikicode.Wikicode | None) -> str:
    return "" if code is None else "".join(_node(node) for node in code.nodes)


def _node(node: mwparserfromhell.nodes.Node) -> str:
    match node:
        case Text():
            return node.value
        case HTMLEntity():
            return node.normalize()
        case Wikilink():
            return _link(node)
        case ExternalLink():
            return _render(node.title) if node.brackets else ""
        case Tag():
            return _tag(node)
        case Template():
            return _template(node)
        case _:  # comments, template arguments; headings inside other nodes
            return ""


def _link(node: Wikilink) -> str:
    title = str(node.title).strip()
    namespace = title.partition(":")[0].strip().casefold() if ":" in title else ""
    if namespace in HIDDEN_NAMESPACES:
        return ""
    if node.text is not None:
        return _render(node.text)
    if re.fullmatch(r"[a-z]{2,3}(-[a-z]+)*", namespace):  # the same page in another language
        return ""
    return _render(node.title).lstrip(":")


def _tag(node: Tag) -> str:
    name = str(node.tag).strip().casefold()
    if name in UNSPEAKABLE_TAGS:
        return OMITTED
    if name in DROPPED_TAGS:
        return "\n" if name in ("table", "gallery", "div") else ""
    return " " if name == "br" else _render(node.contents)


def _template(node: Template) -> str:
    name = str(node.name).strip().casefold().replace("_", " ")
    arguments = [parameter.value for parameter in node.params if not parameter.showkey]
    if name in VERBATIM_TEMPLATES:
        return VERBATIM_TEMPLATES[name]
    if not arguments:
        return ""
    if name in FIRST_ARGUMENT:
        return _render(arguments[0])
    if name in LAST_ARGUMENT:
        return _render(arguments[1] if len(arguments) > 1 else arguments[0])
    if name.startswith("lang-"):
        return _render(arguments[0])
    if name in UNITS:
        return " ".join(_render(argument).strip() for argument in arguments[:2])
    return ""


def _tidy(line: str) -> str:
    line = _SPACES.sub(" ", line)
    line = _BRACKET_START.sub("(", line)
    line = _BRACKET_END.sub(")", line)
    line = _EMPTY_BRACKETS.sub("", line)
    return _BEFORE_PUNCTUATION.sub(r"\1", line).strip()
