"""tokenizer.json and tokenizer_config.json of a byte-level BPE vocabulary stored in GGUF metadata."""

# Kinds of vocabulary entries in GGUF.
CONTROL, USER_DEFINED, UNUSED = 3, 4, 5

QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_level(use_regex: bool) -> dict:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def split(pattern: str) -> dict:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


# By tokenizer.ggml.pre: (normalizer, steps before the merges).
PRE_TOKENIZERS = {
    "smollm": (None, [{"type": "Digits", "individual_digits": True}, byte_level(use_regex=True)]),
    "qwen2": ({"type": "NFC"}, [split(QWEN2_SPLIT), byte_level(use_regex=False)]),
}


def tokenizer(meta) -> dict:
    """The content of tokenizer.json."""
    if meta["tokenizer.ggml.model"] != "gpt2":
        raise SystemExit(f"tokenizer model {meta['tokenizer.ggml.model']} is not byte-level BPE")
    pre = meta["tokenizer.ggml.pre"]
    if pre not in PRE_TOKENIZERS:
        raise SystemExit(f"unknown pre-tokenizer {pre}; known: {', '.join(PRE_TOKENIZERS)}")
    normalizer, steps = PRE_TOKENIZERS[pre]
    entries = list(enumerate(zip(meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"])))
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [added_token(index, text, kind) for index, (text, kind) in entries if kind in (CONTROL, USER_DEFINED)],
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "post_processor": None,
        "decoder": byte_level(use_regex=True),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {text: index for index, (text, kind) in entries if kind != UNUSED},
            "merges": [merge.split(" ") for merge in meta["tokenizer.ggml.merges"]],
        },
    }


def added_token(index: int, text: str, kind: int) -> dict:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": index, "content": text, **flags, "special": kind == CONTROL}


def tokenizer_config(meta) -> dict:
    tokens = meta["tokenizer.ggml.tokens"]

    def text(key):
        index = meta.get(f"tokenizer.ggml.{key}_token_id")
        return None if index is None else tokens[index]

    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": bool(meta.get("tokenizer.ggml.add_bos_token", False)),
        "bos_token": text("bos"),
        "eos_token": text("eos"),
        "pad_token": text("padding"),
        "unk_token": text("unknown"),
        "clean_up_tokenization_spaces": False,
        "model_max_length": meta.arch("context_length"),
        "chat_template": meta.get("tokenizer.chat_template"),
    }
