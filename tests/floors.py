"""The allowed imports between packages and between rooms of a package: `test_architecture` checks every import."""

from __future__ import annotations

OURS = {
    "api",
    "benchmarks",
    "cli",
    "confined",
    "engine",
    "examples",
    "features",
    "flows",
    "jobs",
    "kernels",
    "lab",
    "migrations",
    "protocol",
    "tokenmill",
    "workers",
}
WEB = {"fastapi", "starlette", "uvicorn"}
SQL = {"sqlalchemy", "psycopg", "alembic"}
QUEUE = {"celery", "kombu", "redis"}
TENSORS = {"torch", "transformers", "triton"}
LATE = {
    *(WEB | SQL | QUEUE | TENSORS | {"benchmarks", "lab"}),  # of an extra, or of a checkout
    *("huggingface_hub", "jsonschema_rs", "minijinja", "numpy", "obstore", "rapidfuzz"),
    *("httpx", "httpx2", "openai", "prometheus_client", "pydantic_settings", "rich", "yaml"),  # 10 to 400 ms each
    "importlib",
}
"""Imports that a command may have inside a function: not in every installation, or too slow for help texts."""

FORBIDDEN = {
    "protocol": (OURS - {"protocol"}) | WEB | SQL | QUEUE | TENSORS,
    "kernels": (OURS - {"kernels"}) | WEB | SQL | QUEUE | {"transformers"},
    "engine": (OURS - {"engine", "kernels", "protocol"}) | WEB | SQL | QUEUE,
    "confined": (OURS - {"confined"}) | WEB | SQL | QUEUE | TENSORS,
    "features": (
        OURS - {"api", "cli", "confined", "engine", "features", "flows", "jobs", "protocol", "tokenmill", "workers"}
    )
    | QUEUE
    | TENSORS,
    "flows": (OURS - {"flows", "jobs", "protocol"}) | WEB | QUEUE | TENSORS,
    "jobs": (OURS - {"jobs", "migrations", "protocol", "tokenmill"}) | WEB | QUEUE | TENSORS,
    "api": (OURS - {"api", "features", "flows", "jobs", "protocol"}) | QUEUE | TENSORS,
    "workers": (OURS - {"workers", "jobs", "engine", "features", "flows", "protocol"}) | WEB,
    "benchmarks": {"api", "cli", "lab", "workers", "typer", "click"} | WEB | QUEUE,
    "lab": {"api", "cli", "workers", "typer", "click"} | WEB | QUEUE,
    "tokenmill": (OURS - {"tokenmill"}) | WEB | SQL | QUEUE | TENSORS,
    "migrations": (OURS - {"migrations", "features", "jobs"}) | WEB | QUEUE | TENSORS,
}

# Packages on a GPU machine: the standard library, ours, and these (llvmlite comes with numba, huggingface_hub with
# transformers).
BARE = {
    "huggingface_hub",
    "llvmlite",
    "numba",
    "numpy",
    "safetensors",
    "tokenizers",
    "torch",
    "transformers",
    "triton",
}
# Files that may import more than the others of their package.
EXTRAS = {
    "api/admission/rate_limits.py": {"redis"},  # but not for accepting work: ADR 0016
    "engine/device/energy.py": {"pynvml"},
    "engine/grammars/grammar.py": {"llguidance"},
    "engine/process/messages.py": {"msgspec"},
    "tokenmill/console.py": {"cli"},  # in a process of our own, once our packages are on its path
    "tokenmill/documents.py": {"features"},  # this and the next in a user's process that has requested them
    "tokenmill/engine.py": {"engine"},
}

# The floors of each package, lowest first: a room (a folder, or a file at the root) imports only rooms on lower floors.
FLOORS = {
    "engine": [
        ["errors", "interrupts", "stats"],
        ["outputs", "structured", "thoughts", "gguf", "quantized", "detokenizer"],
        ["vllm_params"],
        ["config", "params", "tokenizer"],
        ["prompts", "suggested_sampling", "text", "scheduling"],
        ["models", "child_output", "chat_prompts"],
        ["device", "pooling", "speculation", "vllm_settings"],
        ["grammars"],
        ["sampling"],
        ["loop"],
        ["build"],
        ["llm", "process"],
        ["__init__"],
    ],
    "engine.loop": [
        ["adapter_rows", "batch", "continuing", "intake", "step_loop", "work"],
        ["pending", "warm_up"],
        ["recorder", "runner"],
        ["compute"],
        ["core"],
    ],
    "features": [
        ["feature"],
        ["*"],
        ["documents", "reports"],
        ["retrieval"],
        ["__init__"],
    ],
    "features.documents.extraction": [
        ["errors"],
        ["documents"],
        ["fields"],
        ["grounding"],
        ["passages"],
        ["retrieval"],
        ["passes"],
        ["scoring"],
        ["course", "evaluation"],
        ["report"],
    ],
    "features.pipelines.rows": [
        ["arrow_values"],
        ["templates"],
        ["sources"],
        ["outputs"],
        ["lines"],
    ],
    "tokenmill": [
        ["errors", "processes"],
        ["packages", "prompts", "console", "importing"],
        ["documents", "engine"],
        ["arrow_scalars"],
        ["row_json"],
        ["carried_rows"],
        ["tables"],
        ["mapping"],
        ["__init__", "__main__"],
    ],
    "kernels": [
        ["errors", "paged"],
        ["grouped_weight"],
        ["cpu", "gpu"],
        ["write_kv", "rope", "packed_linear"],
        ["grouped_linear"],
        ["*"],
    ],
    "workers": [
        [
            "app",
            "control_work",
            "drain",
            "engine_metrics",
            "logs",
            "kept_tokenizer",
            "model_files",
            "prompt_lengths",
            "slots",
        ],
        ["template_renderer", "text_encoder"],
        ["purging", "shown_logprobs", "special_tokens", "turns"],
        ["structure", "thinking", "tool_calls"],
        ["chat_template", "engine_host", "hints"],
        ["prompts", "control", "dispatcher"],
        ["line_run"],
        ["answers"],
        ["chunks"],
        ["pool"],
        ["pooling", "preparing", "remote"],
        ["gpu_main"],
    ],
    "jobs": [
        ["counted", "errors", "ids", "states"],
        ["call_limits", "database", "settings", "tables", "telemetry"],
        [
            "access",
            "chores",
            "claims",
            "decisions",
            "deletions",
            "hooks",
            "outcomes",
            "pagination",
            "partitions",
            "purges",
            "storage",
            "uptime",
        ],
        ["lines"],
        ["accounts"],
        ["engines"],
        ["admin_log", "chunks", "files"],
        ["file_room", "scaling"],
        ["forecasts", "served_models", "uploads"],
        ["served_adapters"],
        ["batches", "audit", "day_record", "metrics", "overview", "retention"],
    ],
    "flows": [
        ["counted_lines", "states", "windows"],
        ["due", "tables"],
        ["ends", "nodes", "reasons", "repeated_calls", "results", "rows", "serving"],
        ["deletion", "kinds", "parts", "standing"],
        ["recipe"],
        ["advancing", "line_recipe"],
    ],
    "api": [
        ["admission", "fields", "logs", "origins", "multipart", "ranges", "schemas", "scopes", "store"],
        ["errors", "openapi", "submission_fields"],
        ["middleware", "parsing", "uploads"],
        ["services"],
        ["auth"],
        ["bodies", "door", "sessions", "spending"],
        ["*"],
        ["dashboard"],
        ["app", "server"],
    ],
}

UNTIL_FLOWS = {
    "features/documents/collections/collection.py",  # a collection with an index is kept
    "features/documents/http/creating.py",  # an extraction may search an index
    "features/documents/work.py",
}
"""Files of documents that import retrieval, which is above them: until both are recipes of one executor."""

COMPOSERS = {
    "api": {"app", "dashboard", "scopes"},
    "workers": {"control", "dispatcher", "preparing", "purging"},
    "jobs": set[str](),
}
"""The rooms that assemble features or iterate their list; other rooms of these packages import no feature."""

MOST_MODULES = 25
"""Maximum at one level of a package: more needs subfolders."""

DOORS = {"kernels.cpu": {"engine"}}
"""Folders that these packages import only through their `__init__`."""

LIBRARIES = {
    "features/documents/extraction": {"confined", "features.documents.extraction", "protocol"},
    "features/pipelines/rows": {"confined", "features.pipelines.rows", "jobs.errors", "tokenmill"},
}
"""Folders of features that may stand alone, and their imports of ours."""
