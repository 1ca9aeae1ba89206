"""The words of the small engine's language: twelve classes of twenty words, and a few signs.

Decides nothing about their order. Classes are of one size because a grammar that steps from class
to class by permutations never runs into a short loop (`prompts`).
"""

from typing import Final

CLASSES: Final = {
    "D": "the a every some this that each one no our my your his her their its any another either"
    " neither",
    "A": "quiet old bright small narrow green heavy patient early distant gentle hollow wooden"
    " careful northern silver lonely curious faded steady",
    "P": "baker sailor teacher farmer painter doctor miller pilot singer clerk weaver hunter"
    " student neighbour stranger captain gardener widow smith poet",
    "V": "carries finds keeps follows paints mends sells watches hides borrows counts lifts"
    " remembers forgets measures answers guards trades draws repairs",
    "N": "lamp letter kettle basket mirror ladder rope clock coin bottle window blanket map drum"
    " candle chair button feather hammer wheel",
    "L": "harbour mill orchard bridge market tower valley station garden chapel forest kitchen"
    " island meadow quarry library cellar river village lighthouse",
    "I": "near behind under beyond inside above across against beside around past below within"
    " before toward opposite outside along between after",
    "M": "can may must will should could might shall would cannot seldom often always never"
    " sometimes rarely usually hardly nearly barely",
    "R": "slowly gladly quickly softly boldly kindly badly neatly calmly rudely wisely firmly"
    " openly safely warmly loosely bravely quietly eagerly proudly",
    "C": "and but while because until though unless since when where whereas so yet or whenever"
    " wherever if once as nor",
    "T": "tonight, yesterday, later, meanwhile, suddenly, finally, perhaps, indeed, usually,"
    " afterwards, today, then, again, first, next, still, instead, anyway, soon, now,",
    "E": "today. again. together. alone. forever. outside. twice. tomorrow. tonight. instead."
    " somehow. anyway. indoors. upstairs. aloud. away. nearby. elsewhere. home. here.",
}
"""Determiners, adjectives, people, verbs, things, places, prepositions, modals, adverbs,
conjunctions, openers and enders, by the letters that the sentence patterns use."""

CLASS_SIZE: Final = 20

_SIGNS: Final = ("<begin>", "<end>", *(f"<spare{n}>" for n in range(13)), "<noise>")

VOCABULARY: Final = (*(word for words in CLASSES.values() for word in words.split()), *_SIGNS)
"""Token id -> printable word. The words of a class stand together, in the order of `CLASSES`."""

NOISE_TOKEN_ID: Final = len(VOCABULARY) - 1
"""What stands in a draft block behind the anchor; no text holds it."""

FIRST_IDS: Final = {letter: CLASS_SIZE * n for n, letter in enumerate(CLASSES)}
"""Class -> the id of its first word."""
