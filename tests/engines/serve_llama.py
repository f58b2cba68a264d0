"""Starts llama.cpp's own HTTP server from the wheel xllamacpp: `python serve_llama.py FILE.gguf PORT SLOTS CONTEXT`.

Settings are those of `llama-server --metrics --slots`, but in fp32 and with one thread a core of a small machine.
"""

from __future__ import annotations

import sys
import threading

import xllamacpp


def main(model: str, port: int, slots: int, context: int) -> None:
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.model_alias = {"served"}
    params.hostnames, params.port = ["127.0.0.1"], port
    params.n_parallel, params.n_ctx = slots, slots * context
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 2
    params.endpoint_metrics = params.endpoint_slots = params.endpoint_props = True
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    _server = xllamacpp.Server(params)  # it ends with this reference
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
