"""Lines answered by an OpenAI-compatible server of somebody else: vLLM, SGLang, llama-server, Ollama, a vendor.

It is one more `Answerer`: leases, fences, flushes and bills are those of every worker.
"""
