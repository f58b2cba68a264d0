"""Run requests step by step: check and queue them, plan a step, build its arrays, compute it, record its tokens.

`core` is the engine that users and the engine process call; `step_loop` defines a step.
"""
