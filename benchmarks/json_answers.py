"""What drafting brings where answers are held to a JSON schema.

    python benchmarks/json_answers.py PROMPTS.jsonl --target smollm2-135m [--json FILE]

Each prompt is answered under a schema, the schemas taking turns: plainly, with drafts that are not
told of the schema, and with drafts that are. All must give the same tokens. What ended is read by
the package jsonschema, which has no part in making it (pip install jsonschema).
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import jsonschema
import typer

import omnidraft
from omnidraft.opening import open_pair
from omnidraft.serve.forms import json_form
from omnidraft.serve.grammar import Grammars


def short(length: int) -> dict[str, Any]:
    """A text of so many characters at most."""
    return {"type": "string", "maxLength": length}


def record(**properties: dict[str, Any]) -> dict[str, Any]:
    """An object with all of these."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


SCHEMAS = {
    "title, tags and difficulty": record(
        title=short(60),
        tags={"type": "array", "items": short(15), "minItems": 1, "maxItems": 4},
        difficulty={"enum": ["easy", "medium", "hard"]},
    ),
    "steps": record(
        steps={
            "type": "array",
            "items": record(number={"type": "integer", "minimum": 1, "maximum": 9}, say=short(40)),
            "minItems": 2,
            "maxItems": 4,
        },
        finished={"type": "boolean"},
    ),
    "answer": record(
        answer=short(60),
        sure={"enum": ["yes", "no"]},
        score={"type": "integer", "minimum": 0, "maximum": 100},
    ),
    "people": {
        "type": "array",
        "items": record(name=short(20), age={"type": ["integer", "null"], "maximum": 120}),
        "minItems": 1,
        "maxItems": 3,
    },
}


def main(
    prompts: Path,
    target: str = "smollm2-135m",
    drafter: str = "default",
    limit: Annotated[int, typer.Option(min=1)] = 200,
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 500,
    draft_length: Annotated[str, typer.Option(help="A number, or auto.")] = "auto",
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """Measure and print."""
    models = open_pair(target, drafter, "auto", None, None)
    sessions = {
        "plain": (omnidraft.Session(models[0]), Grammars(models[0])),
        "drafts are not told": (omnidraft.Session(*models), Grammars(models[0])),
        "drafts are told": (omnidraft.Session(*models), Grammars(*models)),
    }
    length: Any = draft_length if draft_length == "auto" else int(draft_length)
    options = omnidraft.GenerationOptions(max_new_tokens, draft_length=length)
    runs: dict[str, list[omnidraft.Statistics]] = {way: [] for way in sessions}
    ways = list(sessions)
    valid = ended = identical = 0
    lines = prompts.read_text("utf-8").splitlines()[:limit]
    for number, line in enumerate(lines):
        name = list(SCHEMAS)[number % len(SCHEMAS)]
        prompt = f"Tell of this as JSON, with {name}.\n\n{json.loads(line)['prompt'][:600]}"
        answers = {}
        for way in ways[number % 3 :] + ways[: number % 3]:
            session, grammars = sessions[way]
            constraint = grammars.constraint(grammars.grammar(json_form(SCHEMAS[name])))
            session.forget()
            answers[way] = session.generate(prompt, replace(options, constraint=constraint))
            runs[way].append(answers[way].stats)
        plain = answers["plain"]
        identical += all(each.token_ids == plain.token_ids for each in answers.values())
        if plain.finish_reason == "stop":
            ended += 1
            jsonschema.validate(json.loads(plain.text), SCHEMAS[name])
            valid += 1
    print(f"{identical} of {len(lines)} answers identical; {ended} ended, {valid} of them valid")
    figures: dict[str, Any] = {}
    for way, each in runs.items():
        tokens, seconds = sum(s.target_tokens for s in each), sum(s.seconds for s in each)
        figures[way] = {
            "block_efficiency": tokens / sum(s.rounds for s in each),
            "tokens_per_second": tokens / seconds,
            "proposed": sum(s.proposed for s in each),
            "accepted": sum(s.accepted for s in each),
        }
        print(
            f"{way}: {figures[way]['block_efficiency']:.2f} tokens a round, "
            f"{figures[way]['tokens_per_second']:.1f} tokens/s"
        )
    if json_file:
        settings = {
            "target": target,
            "drafter": drafter,
            "prompts": len(lines),
            "max_new_tokens": max_new_tokens,
            "draft_length": draft_length,
            "identical": identical,
            "ended": ended,
            "valid": valid,
            "load": os.getloadavg()[0],
        }
        json_file.write_text(json.dumps({**settings, **figures}, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
