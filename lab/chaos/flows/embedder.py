"""An embedding model for studies: the demo model, whose last token's row is a text's vector."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from lab.chaos.stack import MODEL_FOLDER

_MODULES = ("Transformer", "Pooling", "Normalize")
_MAX_TOKENS = 256


def write_embedder(folder: Path) -> Path:
    """Write the model's folder, and return it."""
    shutil.copytree(MODEL_FOLDER, folder)
    modules = [
        {"idx": number, "name": str(number), "path": f"{number}_{name}", "type": f"sentence_transformers.models.{name}"}
        for number, name in enumerate(_MODULES)
    ]
    modules[0]["path"] = ""
    width = json.loads((folder / "config.json").read_text())["hidden_size"]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": width, "pooling_mode_lasttoken": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    limits = {"max_seq_length": _MAX_TOKENS, "do_lower_case": False}
    (folder / "sentence_bert_config.json").write_text(json.dumps(limits))
    return folder
