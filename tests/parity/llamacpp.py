"""llama.cpp through the ctypes layer of llama-cpp-python: tokens in, logits out, nothing in between."""
import ctypes

import llama_cpp
import numpy as np
from llama_cpp import llama_cpp as ll


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
def discard(_level, _text, _data):
    """Swallows llama.cpp's log lines."""


class LlamaCpp:
    """One model with one context; `prefill` starts an empty context, `step` continues it."""

    name = f"llama.cpp (llama-cpp-python {llama_cpp.__version__})"

    def __init__(self, model: str, threads: int, context: int = 2048, batch: int = 512):
        ll.llama_log_set(discard, ctypes.c_void_p(0))
        ll.llama_backend_init()
        self.model = ll.llama_model_load_from_file(str(model).encode(), ll.llama_model_default_params())
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {model}")
        params = ll.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = context, batch, batch
        params.n_threads = params.n_threads_batch = threads
        self.context = ll.llama_init_from_model(self.model, params)
        if not self.context:
            raise SystemExit(f"llama.cpp cannot make a context for {model}")
        self.vocab = ll.llama_model_get_vocab(self.model)
        self.vocab_size = ll.llama_vocab_n_tokens(self.vocab)
        self.batch_size = batch
        self.batch = ll.llama_batch_init(batch, 0, 1)
        self.position = 0

    def tokenize(self, text: str) -> list:
        data = text.encode()
        ids = (ll.llama_token * (len(data) + 8))()
        count = ll.llama_tokenize(self.vocab, data, len(data), ids, len(ids), False, False)
        return list(ids[:count])

    def prefill(self, ids: list) -> np.ndarray:
        """Logits of every position, [n, vocab]."""
        self.clear()
        chunks = (ids[start : start + self.batch_size] for start in range(0, len(ids), self.batch_size))
        return np.concatenate([self.decode(chunk, every_row=True) for chunk in chunks])

    def prefill_last(self, ids: list) -> np.ndarray:
        """Logits of the last position only, [vocab]; what generation needs."""
        self.clear()
        for start in range(0, len(ids), self.batch_size):
            logits = self.decode(ids[start : start + self.batch_size], every_row=False)
        return logits[-1]

    def step(self, token: int) -> np.ndarray:
        """Logits after one more token, [vocab]."""
        return self.decode([token], every_row=False)[0]

    def clear(self) -> None:
        ll.llama_memory_clear(ll.llama_get_memory(self.context), True)
        self.position = 0

    def decode(self, ids: list, every_row: bool) -> np.ndarray:
        """Appends tokens to the context; logits of all of them or of the last."""
        batch = self.batch
        batch.n_tokens = len(ids)
        for row, token in enumerate(ids):
            batch.token[row] = token
            batch.pos[row] = self.position + row
            batch.n_seq_id[row] = 1
            batch.seq_id[row][0] = 0
            batch.logits[row] = every_row or row == len(ids) - 1
        status = ll.llama_decode(self.context, batch)
        if status != 0:
            raise SystemExit(f"llama_decode failed with status {status} at position {self.position}")
        self.position += len(ids)
        rows = range(len(ids)) if every_row else [len(ids) - 1]
        return np.stack([self.row(index) for index in rows])

    def row(self, index: int) -> np.ndarray:
        return np.ctypeslib.as_array(ll.llama_get_logits_ith(self.context, index), shape=(self.vocab_size,)).copy()
