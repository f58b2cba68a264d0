"""Tags around a text of a prompt that the text itself cannot close."""

from __future__ import annotations

import re
from itertools import count


def enclosed(text: str, name: str) -> str:
    """Return a text between tags; a number is added to their name if the text has a tag of that name."""
    tag = name if not re.search(rf"<\s*/?\s*{name}\b", text, re.IGNORECASE) else _free(text, name)
    return f"<{tag}>\n{text}\n</{tag}>"


def _free(text: str, name: str) -> str:
    taken = set(re.findall(rf"{name}-(\d+)", text, re.IGNORECASE))
    return next(f"{name}-{number}" for number in count(2) if str(number) not in taken)
