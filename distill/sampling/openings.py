"""Openings for sampled conversations: written for this purpose, no evaluation prompt among them.

An opening is either a whole user message, or its first words, which the teacher then continues at
temperature 1. A teacher is steered this way towards chat, maths, code, summaries and languages.
Functions to complete come from Python's own library, or have the start of a docstring.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random

from omnidraft.distill.config import Opening


def _parts(text: str, separator: str | None = None) -> list[str]:
    return text.split(separator)


NAMES = _parts(
    "Anna Ben Carla David Elena Farid Grace Hiro Ines Jack Kofi Lena Mateo Nadia Omar Priya Quinn "
    "Rosa Sam Tara Umar Vera Will Ximena Yusuf Zoe Alice Bob Tom Emily Sarah Mike Julia Peter Liam "
    "Olivia Noah Emma Lucas Mia Ethan Chloe Daniel Sophie Henry Ruth Mark Paula Kevin Nina"
)
THINGS = _parts(
    "apples books marbles stickers pencils cookies coins cards flowers shirts toys oranges cups "
    "stamps balloons eggs candles tickets bottles boxes chairs shells beads pies trees fish "
    "bananas cakes notebooks seeds muffins ribbons bricks plates photos"
)
PLACES = _parts(
    "a school,a bakery,a farm,a library,a zoo,a shop,a park,a factory,a museum,a restaurant,"
    "a theatre,a garage,a hospital,a camp,a market,a stadium,a bookstore,a garden,an office",
    ",",
)
VERBS = _parts(
    "count find compute sum merge split reverse sort filter check remove get is convert parse "
    "format validate build make group rotate flatten encode decode find_max min_of unique longest "
    "shortest replace swap generate calculate move select match compare add multiply"
)
NOUNS = _parts(
    "words numbers list string vowels digits primes matrix pairs intervals palindrome anagrams "
    "duplicates elements substring characters tree path dates factors sequence brackets columns "
    "even odd numbers_in_range triplets prefix median average range squares bits tokens lines "
    "keys values dict grid stack queue time fibonacci divisors subarray"
)
ARGS = _parts(
    "s|text|n|nums|lst|arr|numbers: List[int]|string: str|n: int|a, b|x, y|words|strings: "
    "List[str]|l: list|matrix|k, arr|s: str, k: int|start: int, end: int|a: int, b: int|lst1, "
    "lst2|values: List[float]|d: dict|q, w|arr, k",
    "|",
)
RETURNS = (" -> int", " -> str", " -> bool", " -> List[int]", " -> float", "", "", "", "")
DOC_STARTS = (
    "",
    "",
    " Given",
    " Given a list of",
    " Given a string",
    "Write a function that",
    "Return",
    " Return",
    "\n    Given",
    "\n    Write a function",
    "\n    You are given",
    "\n    Create a function that",
    " Check if",
    " Find",
    " Returns",
    " For a given",
)
CHAT_STARTS = _parts(
    "Write a|Write an|Write|Explain|Explain how|Explain why|How do I|How can I|How does|What is|"
    "What are|What would|Imagine you are|Please|Describe|Describe the|Give me|Can you|Compare|"
    "Suppose|Act as|Compose a|Rewrite the following|List|List the|Why|Who|When|Where|Tell me|Help "
    "me|I need|I want|I am|My|Create a|Draft a|Design a|Suggest|Provide|Is it|Should I|Which|"
    "Identify|Classify|Translate|Edit the following|Pretend|Picture yourself as|Discuss|Analyze|"
    "Evaluate|Given|If|In|Let's|Consider|Could you|Do you|What's the|Name|Summarize|Develop|"
    "Outline|Propose|Extract|Find|You are|Embrace the role of|Assume the role of|Now you are|"
    "Solve|Calculate|Implement|Write a program|Write a poem|Write a short story|Write an email",
    "|",
)
CODE_STARTS = _parts(
    "Write a Python function|Write a Python function to|Write a Python program that|Write a "
    "function that|Write a function to|Implement a function|Implement a|Create a Python|Write a "
    "C++ program|Write a JavaScript function|Write a SQL query|How do I write|Fix this code:\n|"
    "What does this code do?\n|Complete the following code:\n|I have a Python",
    "|",
)
COMPLETE = _parts(
    "Complete this Python function:\n\n|Complete this Python function:\n\n|Complete this Python "
    "function:\n\n|Complete this Python function:\n\n|Complete the following Python function.\n\n|"
    "Finish this function:\n|Implement this function.\n\n|Implement the function below.\n\n|Write "
    "the code of this function:\n\n|Can you finish this for me?\n\n|Fill in the function "
    "according to its docstring.\n\n|Here is a stub. What should the code be?\n\n|Continue this "
    "code:\n\n|I am stuck with this function, please write it:\n\n|Turn this into working Python. "
    "Only code, please.\n\n|Solve this programming task:\n\n|Give me an implementation of:\n\n|"
    "Please write Python code for what this docstring asks.\n\n|",
    "|",
)
SUMMARY_STARTS = _parts(
    "Summarise this article in one sentence:\n|Summarise this article in one sentence:\n|"
    "Summarise this article in one sentence:\n|Summarize this article in one sentence:\n|"
    "Summarize the following article:\n\n|Summarise this text:\n|Give a one-sentence summary of "
    "this news article:\n|Summarize this text in a few sentences:\n\n|TL;DR of this article:\n|"
    "What is this article about?\n\n|What does the text below say, in short?\n\n|Sum up the news "
    "below in a sentence.\n\n|Give me the gist of this:\n\n|Put this story into one line:\n|I have "
    "no time to read this. What is the main point?\n\n|Write a headline for this article:\n\n|"
    "Shorten this to one or two sentences:\n\n|Summary, please:\n\n|Briefly describe what this "
    "report says.\n\n|List the key points of this article:\n\n|Explain this piece of news to a "
    "child, in one sentence.\n\n|Condense the following:\n\n",
    "|",
)
NEWS_STARTS = _parts(
    "The|The|The|The|A|In|It|Police|Officers|Mr|Ms|He said|She said|They|The company|The court|"
    "The club|The government|The minister|The study|The team|The striker|The former|The BBC|The "
    "council|A spokesman for|Researchers|Scientists|The 25-year-old|The 34-year-old|The "
    "incident happened|Officials|The UK|The US|More than|About|Two|Three people|A man|A woman|"
    "Last year|On Monday|On Friday|At least|The crash|The fire|The group|The bank|The Scottish|"
    "The Welsh|The German|The Chinese|Shares in|Sales|The party|The prime minister|The president|"
    "The match|The home side|Media playback is not supported on this device\n|The report|Its|"
    "Speaking|Our|This|An|But|Former|Several|Nearly|Campaigners|Residents|Firefighters|The hosts",
    "|",
)
OTHER_STARTS = _parts(
    "Escribe un|¿Cómo puedo|¿Qué es|¿Cuál es|Explica|Explica cómo|Dame una lista de|¿Por qué|"
    "Necesito ayuda con|Traduce al inglés:|Resume este texto:\n|¿Quién fue|Écris un|Écris une|"
    "Comment|Comment puis-je|Qu'est-ce que|Quelle est|Explique|Pourquoi|Donne-moi|Traduis en "
    "anglais :|Résume ce texte :\n|J'ai besoin de|Schreibe einen|Schreibe eine|Wie kann ich|Was "
    "ist|Warum|Erkläre|Erkläre mir|Nenne mir|Übersetze ins Englische:|Fasse diesen Text "
    "zusammen:\n|Ich brauche|Wer war|Scrivi un|Come posso|Che cos'è|Spiega|Perché|Escreva um|Como "
    "posso|O que é|Explique como|Por que|Schrijf een|Hoe kan ik|Wat is|Napisz|Jak mogę|Co to jest|"
    "Напиши|Как|Что такое|Почему|请写一|如何|什么是|为什么|请解释|翻译成英文：|"
    "日本語で|とは何ですか",
    "|",
)


def _math(rng: Random) -> str:
    """A whole word problem."""
    a, b, c = rng.randint(2, 60), rng.randint(2, 30), rng.randint(2, 12)
    big = rng.choice((rng.randint(20, 100), rng.randint(100, 900), 1000 * rng.randint(1, 9)))
    p, q = rng.sample(NAMES, 2)
    x, y = rng.sample(THINGS, 2)
    place = rng.choice(PLACES)
    pronoun = rng.choice(("He", "She"))
    day1, day2 = rng.sample(("Monday", "Tuesday", "Wednesday", "Thursday", "Friday"), 2)
    return rng.choice(
        (
            f"{p} has {a + b} {x}. {pronoun} gives {b} {x} to {q}. How many {x} does {p} have "
            "left?",
            f"{p} has {a} {x} and {q} has {b} {x}. How many {x} do they have together?",
            f"{p} bought {a} {x} for ${c} each. How much did {p} spend in total?",
            f"There are {a} {x} in each box. How many {x} are there in {c} boxes?",
            f"{p} has {a * c} {x} to share equally among {c} friends. How many {x} does each friend"
            " get?",
            f"{p} read {a} pages on {day1} and {b} pages on {day2}. How many pages did {p} read in "
            "all?",
            f"{p} had some {x}. {q} gave {p} {a} more. Now {p} has {a + b} {x}. How many {x} did "
            f"{p} have to start with?",
            f"At {place} there are {big} {x} and {a} {y}. How many more {x} than {y} are there?",
            f"{p} drives {a} miles per hour for {c} hours, then {b} miles per hour for "
            f"{c + 1} hours. How far does {p} drive?",
            f"{place.capitalize()} sold {big} {x} in the morning and {c} times as many in the "
            f"afternoon. How many {x} did it sell that day?",
            f"{p} earns ${a} an hour and works {c} hours a day, {rng.randint(3, 6)} days a week. "
            f"How much does {p} earn in {b} weeks?",
            f"{big} people visited {place} on {day1}. On {day2}, {a} fewer people came. How many "
            "people came over the two days?",
            f"A {rng.choice(('rectangle', 'garden', 'room'))} is {a} meters long and {b} meters "
            f"wide. What is its {rng.choice(('area', 'perimeter'))}?",
            f"{p} is {a} years old. {q} is {c} times as old. How old will {q} be in {b} years?",
            f"What is {a} {rng.choice(('plus', 'times', 'minus', '+', '*'))} {b}?",
            f"The sum of two numbers is {a + b}. One of them is {a}. What is the other number?",
            f"{p} wants to buy {x} that cost ${a} each. {pronoun} has ${a * c + b}. How many can "
            f"{p} buy, and how much money is left?",
            f"{p} had ${big}. {pronoun} spent {rng.choice((10, 20, 25, 50, 75))}% of it on {x}. "
            "How much money is left?",
            f"{c} {x} cost ${a}. How much do {c * b} {x} cost?",
            f"Each of {c} shelves holds {a} {x} and {b} {y}. How many items are there altogether?",
        )
    )


def _math_opening(rng: Random) -> str:
    """The first words of a word problem."""
    name, thing = rng.choice(NAMES), rng.choice(THINGS)
    n = rng.randint(2, 100)
    return rng.choice(
        (
            f"{name} has {n} {thing}",
            f"{name} bought {n} {thing}",
            f"{name} wants to",
            f"{name} and {rng.choice(NAMES)}",
            f"{name} is",
            f"{name} had",
            f"There were {n}",
            f"There are {n} {thing}",
            f"{rng.choice(PLACES).capitalize()} has",
            f"If {name}",
            f"A {thing[:-1]} costs",
            f"In {rng.choice(PLACES)}, there are",
            f"At {rng.choice(PLACES)}, {name}",
            f"{name}'s",
            f"Each day, {name}",
            f"It takes {name}",
            f"For {rng.choice(PLACES)}, {name} made",
            "The sum of",
            "What is the",
            "How many",
        )
    )


def _begun_function(rng: Random) -> str:
    """A function to complete: its signature and the start of its docstring."""
    name = f"{rng.choice(VERBS)}_{rng.choice(NOUNS)}"
    imports = rng.choice(("from typing import List\n\n\n", "", "", "import math\n\n"))
    quote = rng.choice(('"""', '"""', '"""', "'''"))
    signature = f"def {name}({rng.choice(ARGS)}){rng.choice(RETURNS)}:\n    "
    return f"{rng.choice(COMPLETE)}{imports}{signature}{quote}{rng.choice(DOC_STARTS)}"


@cache
def _library_functions() -> tuple[str, ...]:
    """Signatures and docstrings of the functions in Python's library that say what they do."""
    found = []
    for path in sorted(Path(os.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
                continue
            says = ast.get_docstring(node)
            if says is None or not 40 <= len(says) <= 800 or '"""' in says:
                continue
            returns = "" if node.returns is None else f" -> {ast.unparse(node.returns)}"
            lines = "\n".join(f"    {line}".rstrip() for line in f'"""{says}'.split("\n"))
            found.append(f'def {node.name}({ast.unparse(node.args)}){returns}:\n{lines}\n    """\n')
    return tuple(found)


def _whole_or_begun_maths(rng: Random) -> tuple[str, bool]:
    return (_math_opening(rng), False) if rng.random() < 0.5 else (_math(rng), True)


def _code(rng: Random) -> tuple[str, bool]:
    draw = rng.random()
    if draw < 0.2:
        return rng.choice(COMPLETE) + rng.choice(_library_functions()), True
    return (_begun_function(rng) if draw < 0.8 else rng.choice(CODE_STARTS)), False


_WRITTEN: dict[Opening, Callable[[Random], tuple[str, bool]]] = {
    "free": lambda rng: ("", False),
    "chat": lambda rng: (rng.choice(CHAT_STARTS), False),
    "code": _code,
    "summary": lambda rng: (rng.choice(SUMMARY_STARTS) + rng.choice(NEWS_STARTS), False),
    "maths": _whole_or_begun_maths,
    "languages": lambda rng: (rng.choice(OTHER_STARTS), False),
}


class Openings:
    """Draws openings.

    Args:
        shares: how often which kind comes; they need not add up to 1.
        prompts: those of kind ``prompts``, whole messages.
    """

    def __init__(self, shares: Mapping[Opening, float], prompts: Sequence[str]) -> None:
        self._kinds, self._shares = list(shares), list(shares.values())
        self._prompts = prompts

    def draw(self, rng: Random) -> tuple[str, bool]:
        """An opening's text, and whether it is a whole message."""
        (kind,) = rng.choices(self._kinds, self._shares)
        return (rng.choice(self._prompts), True) if kind == "prompts" else _WRITTEN[kind](rng)
