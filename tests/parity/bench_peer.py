"""One peer engine as a worker process: reads a job per line on stdin, answers with its timings on stdout.

    python3 bench_peer.py llamacpp|xllamacpp MODEL.gguf THREADS

A job is {"prompt": [ids], "tokens": n}; the answer {"prefill_seconds", "decode_seconds"}: until the first token, and from
the first to the n-th. Both are greedy and never stop early. `llamacpp` needs llama-cpp-python, `xllamacpp` the wheel of
that name.
"""
import json
import os
import sys
import time


class Native:
    """llama.cpp called directly; only the last row's logits are computed, as in generation."""

    def __init__(self, model: str, threads: int):
        from llamacpp import LlamaCpp

        self.engine = LlamaCpp(model, threads)
        self.description = self.engine.name

    def run(self, prompt: list, tokens: int) -> dict:
        start = time.perf_counter()
        token = int(self.engine.prefill_last(prompt).argmax())
        first = time.perf_counter()
        for _ in range(tokens - 1):
            token = int(self.engine.step(token).argmax())
        return {"prefill_seconds": first - start, "decode_seconds": time.perf_counter() - first}


class Prebuilt:
    """The server inside xllamacpp, called in process and not streamed; it reports the two times itself."""

    def __init__(self, model: str, threads: int):
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = model
        params.n_ctx, params.n_parallel = 2048, 1
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        params.verbosity = -1
        self.server = xllamacpp.Server(params)
        self.description = f"llama.cpp (xllamacpp {xllamacpp.__version__})"

    def run(self, prompt: list, tokens: int) -> dict:
        request = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "cache_prompt": False}
        answer = self.server.handle_completions({**request, "temperature": 0, "samplers": ["top_k"], "top_k": 1})
        timings = answer["timings"]
        if timings["predicted_n"] != tokens:
            raise SystemExit(f"asked for {tokens} tokens, {timings['predicted_n']} came back")
        # predicted_ms starts when the first token is sampled.
        return {"prefill_seconds": timings["prompt_ms"] / 1e3, "decode_seconds": timings["predicted_ms"] / 1e3}


def main() -> None:
    kind, model, threads = sys.argv[1:]
    # Engines print to file descriptor 1; answers keep the real one.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    engine = {"llamacpp": Native, "xllamacpp": Prebuilt}[kind](model, int(threads))
    print(json.dumps({"description": engine.description}), file=answers, flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        print(json.dumps(engine.run(job["prompt"], job["tokens"])), file=answers, flush=True)


if __name__ == "__main__":
    main()
