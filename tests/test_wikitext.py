import pytest

from sparse_control.wikitext import paragraphs


@pytest.mark.parametrize(
    ("markup", "prose"),
    [
        ("'''Bold''' and ''slanted'' [[link|words]] in [[Paris]].", "Bold and slanted words in Paris."),
        ("A fact.<ref>{{cite web|title=x}}</ref> Another.<ref name=a /> End.", "A fact. Another. End."),
        ("Rome ({{lang-la|Roma}}; {{IPA|xx}}) grew.", "Rome (Roma) grew."),
        ("Rome ({{IPA|xx}}; ) grew.", "Rome grew."),
        ("It is {{convert|5|km|mi}} long &ndash; or {{lang|fr|environ}} so.", "It is 5 km long – or environ so."),
        ("See [http://example.org the page] now.", "See the page now."),
        ("[[File:A.jpg|thumb|A [[nested]] caption]]Text goes on.", "Text goes on."),
        ("[[de:Haus]][[Category:Houses]]House.", "House."),
        ("One<br/>two <!-- hidden -->three.", "One two three."),
    ],
)
def test_inline_markup(markup, prose):
    assert paragraphs(markup) == [prose]


@pytest.mark.parametrize(
    "markup",
    [
        "{| class=wikitable\n|-\n| cell || cell\n|}",
        "* a point\n# a number\n: indented\n; term",
        "where <math>x^2</math> is the square.",
        "{{Infobox country|name=x}}",
        "== Heading ==",
        "left [[open",
        "[[File:A.jpg|thumb|caption]]",
    ],
)
def test_what_is_no_prose_is_left_out(markup):
    assert paragraphs(markup) == []


def test_back_matter_is_left_out_with_its_subsections_and_ends_at_the_next_section():
    markup = "One.\n== See also ==\nTwo.\n=== More ===\nThree.\n== History ==\nFour.\n=== References ===\nFive."
    assert paragraphs(markup) == ["One.", "Four."]


def test_a_table_does_not_take_its_neighbours_along():
    assert paragraphs("Before.\n{|\n| x\n|}\nAfter.") == ["Before.", "After."]
