"""Indirect-object identification: two names, then one again; the answer is the other (source document: IOI).

Source and target differ in the repeated name alone, so the answer changes from one name to the other.
"""

from itertools import combinations

import numpy as np

from sparse_control.protocol.panels.draw import Plan
from sparse_control.protocol.panels.pair import Draft, fill

TASK = "ioi"

# ABBA repeats the second name, BABA the first; the other order is the target.
TEMPLATES = {
    "fit": (
        "When {first} and {second} went to the store, {again} gave a drink to",
        "After {first} and {second} sat down at the table, {again} passed the salt to",
        "While {first} and {second} were working in the garden, {again} handed a shovel to",
        "Once {first} and {second} had finished dinner, {again} offered dessert to",
        "Then {first} and {second} met at the station, and {again} showed the ticket to",
        "Since {first} and {second} shared an office, {again} often lent a pen to",
        "Today {first} and {second} opened the shop early, and {again} brought the keys to",
        "In the kitchen {first} and {second} cooked soup, and {again} passed the spoon to",
    ),
    "evaluate": (
        "Because {first} and {second} were old friends, {again} wrote a long letter to",
        "Last night {first} and {second} played cards, and {again} dealt the first hand to",
        "As {first} and {second} walked along the beach, {again} threw a ball to",
        "Before {first} and {second} left the museum, {again} bought a postcard for",
        "On Sunday {first} and {second} baked bread, and {again} served a slice to",
        "During the lesson {first} and {second} drew maps, and {again} returned the pencil to",
        "Outside the theatre {first} and {second} waited in line, and {again} offered an umbrella to",
        "Two days ago {first} and {second} went camping, and {again} lent a tent to",
    ),
    "reuse": (
        "At the party {first} and {second} exchanged presents, and {again} gave a necklace to",
        "In the library {first} and {second} studied together, and {again} read a poem to",
        "Yesterday {first} and {second} repaired the boat, and {again} handed a hammer to",
        "Although {first} and {second} lived far apart, {again} mailed a package to",
        "Every morning {first} and {second} rode the bus, and {again} saved a seat for",
        "Later {first} and {second} visited the farm, and {again} fed carrots with help from",
        "On the train {first} and {second} shared a cabin, and {again} lent a blanket to",
        "This summer {first} and {second} rented a cottage, and {again} sent the address to",
    ),
}

NAMES = {
    "fit": (
        "James", "Mary", "Robert", "Linda", "Michael", "Sarah", "Thomas",
        "Karen", "Daniel", "Nancy", "Paul", "Emily", "Kevin", "Laura",
    ),
    "evaluate": (
        "John", "Patricia", "David", "Jennifer", "William", "Barbara", "Richard",
        "Susan", "Matthew", "Lisa", "Andrew", "Michelle", "George", "Helen",
    ),
    "reuse": (
        "Joseph", "Jessica", "Charles", "Margaret", "Mark", "Sandra", "Steven",
        "Amanda", "Brian", "Rebecca", "Jason", "Anna", "Peter", "Alice",
    ),
}  # fmt: skip


def plan(split: str, n: int, generator: np.random.Generator) -> Plan:
    """Templates in turn, orders balanced, no two names together twice.

    A pair and its mirror have the same two names, so they never meet in a split.
    """
    couples = list(combinations(NAMES[split], 2))
    templates = generator.permutation(len(TEMPLATES[split]))
    orders = generator.permutation([("ABBA", "BABA")[i % 2] for i in range(n)])
    chosen = generator.permutation(len(couples))
    swap = generator.integers(2, size=len(couples))
    return Plan(
        candidates=[couples[couple][:: -1 if swap[couple] else 1] for couple in chosen],
        drafts=lambda pairs, names: (
            _draft(split, int(templates[len(pairs) % len(templates)]), names, str(orders[len(pairs)])),
        ),
    )


def units(split: str) -> dict[str, tuple[str, ...]]:
    """What no other split may hold."""
    return {"template": TEMPLATES[split], "name": NAMES[split]}


def _draft(split: str, template: int, names: tuple[str, str], order: str) -> Draft:
    first, second = names
    repeated, other = (second, first) if order == "ABBA" else (first, second)
    return Draft(
        id=f"{TASK}/{split}/{template}/{first}-{second}/{order}",
        task=TASK,
        split=split,
        orientation=order,
        pieces=fill(TEMPLATES[split][template], first=first, second=second, again=(repeated, other)),
        source_answers=(f" {other}",),
        target_answers=(f" {repeated}",),
        sign=1 if order == "ABBA" else -1,
    )
