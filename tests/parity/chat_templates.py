#!/usr/bin/env python3
"""Records how transformers renders data/conversations.json with the chat templates of data/chat_templates and of
`fetch.py vocab-suites`.

    pip install -r requirements-templates.txt
    python3 chat_templates.py data/chat_templates.json.gz

The recording holds, for each template file, its sha256 and per conversation the text, or the error. `strftime_now(format)` gives
`date(format)`; special tokens are `<bos>` and `<eos>`. The comparison is core/src/text/chat_template/tests.rs.
"""
import argparse
import gzip
import hashlib
import json
from pathlib import Path

import fetch

HERE = Path(__file__).resolve().parent
SPECIAL_TOKENS = {"bos_token": "<bos>", "eos_token": "<eos>"}


def render(template: str, conversation: dict) -> dict:
    """{"text": …} or {"error": …}."""
    from transformers.utils import chat_template_utils

    compiled = chat_template_utils._compile_jinja_template(template)
    compiled.globals["strftime_now"] = lambda format: f"date({format})"
    try:
        rendered, _ = chat_template_utils.render_jinja_template(
            [conversation["messages"]],
            tools=conversation.get("tools"),
            chat_template=template,
            add_generation_prompt=conversation.get("add_generation_prompt", False),
            continue_final_message=conversation.get("continue_final_message", False),
            **conversation.get("kwargs", {}),
            **SPECIAL_TOKENS,
        )
        return {"text": rendered[0]}
    except Exception as error:  # whatever a template raises is what is recorded
        return {"error": f"{type(error).__name__}: {error}".split("\n")[0][:200]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    conversations = json.loads((HERE / "data" / "conversations.json").read_text())
    recording = {}
    folders = HERE / "data" / "chat_templates", fetch.fetch("vocab-suites") / "templates"
    for path in (path for folder in folders for path in sorted(folder.glob("*.jinja"))):
        template = path.read_text()
        recording[path.name] = {
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "renderings": {name: render(template, conversation) for name, conversation in conversations.items()},
        }
    text = json.dumps(recording, ensure_ascii=False, indent=1, sort_keys=True)
    args.out.write_bytes(gzip.compress(text.encode(), mtime=0))
    errors = sum("error" in r for t in recording.values() for r in t["renderings"].values())
    print(f"{len(recording)} templates, {len(conversations)} conversations, {errors} errors")


if __name__ == "__main__":
    main()
