#!/usr/bin/env python3
"""Checks a running metrale server with the official `openai` client.

    python tests/clients/openai_client.py http://127.0.0.1:8000/v1 [--api-key KEY]

Needs no particular model: it checks the shape of answers, not their words. Chat is skipped with a
note if the model has no chat template. Exit status 0 if every check passed.
"""

import argparse
import sys
import traceback

import openai

QUESTION = [{"role": "user", "content": "Say hello."}]


def check_models(client, model):
    card = client.models.retrieve(model)
    assert card.id == model and card.object == "model", card


def check_completion(client, model):
    answer = client.completions.create(model=model, prompt="Once upon a time", max_tokens=8, temperature=0)
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-"), answer
    assert answer.choices[0].text is not None
    assert answer.choices[0].finish_reason in ("stop", "length"), answer
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, usage
    assert 1 <= usage.completion_tokens <= 8, usage


def check_prompt_lists(client, model):
    answer = client.completions.create(model=model, prompt=["a", "b"], n=2, max_tokens=2)
    assert sorted(choice.index for choice in answer.choices) == [0, 1, 2, 3], answer
    answer = client.completions.create(model=model, prompt=[[1, 2], [3]], max_tokens=1)
    assert len(answer.choices) == 2, answer


def check_completion_logprobs(client, model):
    answer = client.completions.create(model=model, prompt="Hello", max_tokens=4, logprobs=2, echo=True)
    logprobs = answer.choices[0].logprobs
    columns = (logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, logprobs.text_offset)
    assert len({len(column) for column in columns}) == 1, logprobs
    assert logprobs.token_logprobs[0] is None and logprobs.top_logprobs[0] is None, logprobs
    assert all(value <= 0 for value in logprobs.token_logprobs[1:]), logprobs
    assert answer.choices[0].text.startswith("Hello"), answer


def check_scoring(client, model):
    answer = client.completions.create(model=model, prompt="Hello", max_tokens=0, logprobs=0, echo=True)
    assert answer.choices[0].text == "Hello" and answer.usage.completion_tokens == 0, answer


def check_completion_stream(client, model):
    request = dict(model=model, prompt="Once", max_tokens=8, temperature=0, seed=1)
    whole = client.completions.create(**request).choices[0].text
    text = "".join(chunk.choices[0].text for chunk in client.completions.create(**request, stream=True))
    assert text == whole, (text, whole)


def check_chat(client, model):
    answer = client.chat.completions.create(model=model, messages=QUESTION, max_completion_tokens=8)
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-"), answer
    message = answer.choices[0].message
    assert message.role == "assistant" and message.content is not None, answer
    assert answer.usage.prompt_tokens_details.cached_tokens >= 0, answer.usage


def check_chat_logprobs(client, model):
    answer = client.chat.completions.create(
        model=model, messages=QUESTION, max_tokens=3, logprobs=True, top_logprobs=2
    )
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens, answer
    for entry in content:
        assert len(entry.top_logprobs) == 2 and entry.logprob <= 0 and entry.bytes is not None, entry


def check_chat_stream(client, model):
    stream = client.chat.completions.create(
        model=model, messages=QUESTION, max_tokens=8, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant", chunks[0]
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens >= 1, chunks[-1]
    assert chunks[-2].choices[0].finish_reason in ("stop", "length"), chunks[-2]
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1


def check_stream_can_be_left(client, model):
    stream = client.completions.create(model=model, prompt="Once", max_tokens=64, stream=True)
    next(iter(stream))
    stream.close()


def check_extensions(client, model):
    extra = {"return_token_ids": True, "min_p": 0.1, "top_k": 5, "repetition_penalty": 1.1, "ignore_eos": True}
    answer = client.completions.create(model=model, prompt="Once", max_tokens=4, extra_body=extra)
    assert len(answer.choices[0].model_extra["token_ids"]) == 4, answer


def check_errors(client, model):
    expect(openai.NotFoundError, "model_not_found", client.completions.create, model="no-such-model", prompt="a")
    expect(
        openai.BadRequestError,
        "context_length_exceeded",
        client.completions.create,
        model=model,
        prompt="a",
        max_tokens=10**9,
    )
    error = expect(openai.BadRequestError, None, client.completions.create, model=model, prompt="a", temperature=-1)
    assert error.param == "temperature", error
    error = expect(
        openai.BadRequestError,
        "unsupported_parameter",
        client.chat.completions.create,
        model=model,
        messages=QUESTION,
        response_format={"type": "json_object"},
    )
    assert error.param == "response_format", error


def expect(kind, code, call, **request):
    """Returns the error of that kind and code; anything else fails the check."""
    try:
        call(**request)
    except kind as error:
        assert code is None or error.code == code, error
        return error
    raise AssertionError(f"expected {kind.__name__}, got an answer")


def has_chat_template(client, model):
    try:
        client.chat.completions.create(model=model, messages=QUESTION, max_tokens=1)
    except openai.BadRequestError as error:
        if "template" in str(error):
            return False
        raise
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base_url", help="for example http://127.0.0.1:8000/v1")
    parser.add_argument("--api-key", default="none")
    arguments = parser.parse_args()
    client = openai.OpenAI(base_url=arguments.base_url, api_key=arguments.api_key, max_retries=0, timeout=120)
    model = client.models.list().data[0].id
    checks = [(name, check) for name, check in globals().items() if name.startswith("check_")]
    if not has_chat_template(client, model):
        print("skip  chat: the model has no chat template")
        checks = [(name, check) for name, check in checks if "chat" not in name]
    failures = 0
    for name, check in checks:
        try:
            check(client, model)
            print(f"ok    {name}")
        except Exception:
            failures += 1
            print(f"FAIL  {name}")
            traceback.print_exc()
    print(f"{len(checks) - failures} of {len(checks)} checks passed against {model}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
