"""Made-up files of facts in the forms that readers have: own JSON lines, and ParaRel as it is published."""

import json
from pathlib import Path


def letters(n: int) -> list[str]:
    return [chr(ord("a") + index) for index in range(n)]


def write_lines(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_facts(folder: Path, facts: dict, *, families: int = 2, own_families: bool = False) -> Path:
    """Facts, relation -> (subject, answer or answers), and prompts of every relation, in one file."""
    rows = [
        {"relation": relation, "subject": subject, "answers": [answer] if isinstance(answer, str) else answer}
        for relation, pairs in facts.items()
        for subject, answer in pairs
    ]
    for relation in facts:
        for number in range(1, families + 1):
            family = f"way{number}" + f" of {relation}" * own_families
            rows.append({"relation": relation, "family": family, "prompt": f"{relation} {number}: {{subject}} ->"})
    return write_lines(folder / "facts.jsonl", rows)


def write_pararel(folder: Path, relations: int = 6, facts: int = 34, lemmas: int = 3) -> Path:
    """A folder in the form of ParaRel's data/, of invented subjects; every relation has answers of its own."""
    for number in range(1, relations + 1):
        patterns = [
            {"pattern": f"[X] {lemma}s {number} to [Y].", "lemma": lemma, "extended_lemma": lemma, "tense": "present"}
            for lemma in (f"verb{number}{letter}" for letter in letters(lemmas))
        ]
        rows = [
            {"sub_label": f"Subject{number}x{index}", "obj_label": f"Object{number}x{index % 7}", "uuid": str(index)}
            for index in range(facts)
        ]
        write_lines(folder / "pattern_data" / "graphs_json" / f"P{number}.jsonl", patterns)
        write_lines(folder / "trex_lms_vocab" / f"P{number}.jsonl", rows)
    return folder
