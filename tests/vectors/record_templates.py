"""Write templates.json anew: what transformers renders of each template and conversation.

Run it as ``python tests/vectors/record_templates.py`` where transformers is installed. Today's date
is written as the format that gives it.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path

import jinja2
from transformers.utils.chat_template_utils import render_jinja_template

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from chat_families import CONVERSATIONS, FAMILIES, RENDERED

DATES = ("%d %b %Y", "%B %d, %Y", "%d %B %Y")


def rendered(family: str, conversation: str, opened: bool) -> str | None:
    """None: the template refuses it."""
    each = FAMILIES[family]
    try:
        texts, _ = render_jinja_template(
            [CONVERSATIONS[conversation]],
            chat_template=each.template,
            add_generation_prompt=opened,
            **each.names,
        )
    except jinja2.TemplateError:
        return None
    text: str = texts[0]
    for form in DATES:
        text = text.replace(datetime.now().strftime(form), form)
    return text


if __name__ == "__main__":
    recorded = {
        family: {
            conversation: [rendered(family, conversation, opened) for opened in (False, True)]
            for conversation in CONVERSATIONS
        }
        for family in FAMILIES
    }
    RENDERED.write_text(json.dumps(recorded, ensure_ascii=False, indent=1) + "\n", "utf-8")
