"""The off-target panel: 32 multiple-choice questions unrelated to any task, 16 humanities and 16 STEM (axis 5)."""

import hashlib
from dataclasses import dataclass
from itertools import zip_longest

from sparse_control.errors import InputError
from sparse_control.files import sha256_file
from sparse_control.protocol.panels.loaders import FIELDS
from sparse_control.protocol.panels.prompt_files import FIELD, read_prompts_file
from sparse_control.protocol.panels.questions import Question, prompt_text
from sparse_control.protocol.panels.sources import PanelSources, field_questions, off_target_subjects
from sparse_control.seeds import stream

PER_FIELD = 16


@dataclass(frozen=True)
class OffTargetPrompt:
    """One question with four options; the readout is the whole next-token distribution after `Answer:`.

    Attributes:
        id: unique within a panel.
        field: `humanities` or `stem`; `given` of a file's prompts.
        text: the prompt.
        subject: of MMLU; empty for the project's own prompts.
    """

    id: str
    field: str
    text: str
    subject: str = ""


# (question, A, B, C, D)
HUMANITIES = (
    ("Which ancient people built the palace at Knossos?", "Minoans", "Etruscans", "Hittites", "Phoenicians"),
    ("The author of the play Hamlet is", "Ben Jonson", "William Shakespeare", "John Milton", "Oscar Wilde"),
    (
        "A syllogism with two true premises and a valid form has a conclusion that is",
        "probably false",
        "meaningless",
        "true",
        "unknown",
    ),
    (
        "Which treaty formally ended the war between Germany and the Allied powers of 1914-1918?",
        "Treaty of Tordesillas",
        "Peace of Westphalia",
        "Treaty of Utrecht",
        "Treaty of Versailles",
    ),
    ("Utilitarian ethics judges an act chiefly by its", "consequences", "motives", "legality", "tradition"),
    ("In law, a contract usually requires an offer and", "a witness", "an acceptance", "a notary", "a judge"),
    ("The Rosetta Stone was decisive for reading", "Linear A", "Mayan glyphs", "Egyptian hieroglyphs", "runes"),
    ("Which city was the capital of the Byzantine Empire?", "Athens", "Ravenna", "Antioch", "Constantinople"),
    ("The philosopher who wrote that he thinks, therefore he is, was", "Descartes", "Hume", "Plato", "Kant"),
    ("A sonnet has traditionally how many lines?", "Eight", "Fourteen", "Twenty", "Ten"),
    (
        "The printing press with movable type was introduced to Europe by",
        "Galileo Galilei",
        "Leonardo da Vinci",
        "Johannes Gutenberg",
        "Martin Luther",
    ),
    ("Which river was central to the rise of ancient Egypt?", "Tigris", "Danube", "Indus", "Nile"),
    ("In Greek myth, the goddess of wisdom is", "Athena", "Hera", "Demeter", "Artemis"),
    (
        "The power of a court to strike down a statute is called",
        "habeas corpus",
        "judicial review",
        "eminent domain",
        "double jeopardy",
    ),
    ("Which movement in painting is linked with Claude Monet?", "Cubism", "Surrealism", "Impressionism", "Baroque"),
    ("The Silk Road chiefly joined the Mediterranean with", "Iceland", "Australia", "Peru", "China"),
)
STEM = (
    ("The derivative of x squared with respect to x is", "2x", "x", "x cubed", "2"),
    ("Which particle carries a negative electric charge?", "Proton", "Electron", "Neutron", "Photon"),
    ("Water is a compound of oxygen and", "carbon", "nitrogen", "hydrogen", "helium"),
    ("In a binary search over a sorted list of n items, the number of steps grows like",
     "n", "n squared", "n factorial", "log n"),
    ("The organelle in which most of the energy of a cell is released is the",
     "mitochondrion", "ribosome", "nucleus", "vacuole"),
    ("The unit of electrical resistance is the", "volt", "ohm", "ampere", "watt"),
    ("A triangle with sides of 3, 4 and 5 is", "equilateral", "obtuse", "right-angled", "isosceles"),
    ("Which planet is the largest in the solar system?", "Mars", "Venus", "Neptune", "Jupiter"),
    ("The acidity of a solution is expressed by its", "pH", "mass", "volume", "colour"),
    ("If a fair coin is tossed twice, the probability of two heads is", "1/2", "1/4", "1/3", "1/8"),
    ("Which data structure returns the item that was added last?", "Queue", "Tree", "Stack", "Graph"),
    ("Plants take up which gas for photosynthesis?", "Oxygen", "Argon", "Methane", "Carbon dioxide"),
    ("Force equals mass multiplied by", "acceleration", "velocity", "distance", "time"),
    ("The chemical symbol of sodium is", "So", "Na", "S", "Sd"),
    ("A prime number has exactly how many positive divisors?", "One", "Three", "Two", "Four"),
    ("Sound cannot travel through", "steel", "water", "air", "a vacuum"),
)  # fmt: skip


def _own(field: str, number: int, text: str, *options: str) -> OffTargetPrompt:
    question = Question(f"{field}/{number:02d}", text, options, 0)
    return OffTargetPrompt(question.id, field, prompt_text(question))


def _from_mmlu(field: str, question: Question) -> OffTargetPrompt:
    text = prompt_text(question)
    return OffTargetPrompt(
        f"{field}/{question.id} sha256:{hashlib.sha256(text.encode()).hexdigest()[:16]}", field, text, question.subject
    )


OFF_TARGET = tuple(
    _own(field, number, *item)
    for field, items in (("humanities", HUMANITIES), ("stem", STEM))
    for number, item in enumerate(items)
)


def off_target_panel(seed: int = 0, sources: PanelSources = PanelSources()) -> tuple[OffTargetPrompt, ...]:
    """The 32 prompts of axis 5: 16 humanities, then 16 STEM; of a file of the reader's as many as it has.

    The ids of MMLU's say field, file and row, and begin the SHA-256 of the prompt; its text is in no record.

    Args:
        seed: of the draw from MMLU, the stream (seed, "off_target", "panel", "prompts"); the own panel is always whole.
        sources: prompts of a file where given; else MMLU's subjects that no task uses, in turn; else the own panel.

    Raises:
        InputError: a field has no subject for the panel alone, or fewer than 16 questions in them.
    """
    if sources.off_target is not None:
        before = sources.off_target_sha256
        found, _ = read_prompts_file(sources.off_target, () if sources.pairs is None else sources.pairs.prompts())
        if sha256_file(sources.off_target) != before:
            raise InputError(f"{sources.off_target}: became another file while it was measured; run it again")
        return tuple(OffTargetPrompt(id, FIELD, text) for id, text in found)
    if sources.mmlu_questions is None:
        return OFF_TARGET
    generator = stream(seed, "off_target", "panel", "prompts")
    panel = []
    for field in FIELDS:
        left = field_questions(field, "off_target", sources)
        subjects = off_target_subjects(field, sources.mmlu_questions)
        if not subjects:
            raise InputError(
                f"{sources.mmlu}: {field}: has no subject for the off-target panel beside one of the tasks; give each "
                "subject a file, or name it in a column subject"
            )
        if len(left) < PER_FIELD:
            raise InputError(
                f"{sources.mmlu}: {field}: {len(left)} questions in the subjects of the off-target panel "
                f"({', '.join(subjects)}), not {PER_FIELD}"
            )
        drawn = [left[index] for index in generator.permutation(len(left))]
        by_subject = [[question for question in drawn if question.subject == subject] for subject in subjects]
        in_turn = [question for row in zip_longest(*by_subject) for question in row if question is not None]
        panel += [_from_mmlu(field, question) for question in sorted(in_turn[:PER_FIELD], key=left.index)]
    return tuple(panel)
