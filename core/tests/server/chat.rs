//! `/v1/chat/completions` without streaming.

use serde_json::{Value, json};

use crate::support::engine::FakeEngine;
use crate::support::text::bytes;
use crate::support::{MAX_MODEL_LEN, MODEL, TestServer, model, options};

async fn chat(server: &TestServer, body: Value) -> Value {
    let response = server.client.post("/v1/chat/completions", &body).await;
    assert_eq!(response.status, 200, "{}", response.text());
    response.json()
}

#[tokio::test]
async fn an_answer_is_an_assistant_message() {
    let engine = FakeEngine::replying("Hi!");
    let server = TestServer::over(&engine).await;
    let body =
        chat(&server, json!({ "model": "alias", "messages": [{ "role": "user", "content": "q" }] })).await;
    assert_eq!((&body["object"], &body["model"]), (&json!("chat.completion"), &json!("alias")));
    assert!(body["id"].as_str().unwrap().starts_with("chatcmpl-"));
    let choice = &body["choices"][0];
    assert_eq!(choice["message"], json!({ "role": "assistant", "content": "Hi!", "refusal": null }));
    assert_eq!(choice["finish_reason"], "stop");
    let request = engine.requests().remove(0);
    assert_eq!(request.prompt, bytes("user:q;assistant:"));
    assert_eq!(request.sampling.max_tokens, MAX_MODEL_LEN - request.prompt.len());
}

#[tokio::test]
async fn messages_reach_the_template_in_one_shape() {
    let engine = FakeEngine::replying("x");
    let mut options = options();
    options.chat_template_kwargs.insert("style".to_owned(), json!("plain"));
    let server = TestServer::with(options, Some(model(&engine))).await;
    let parts = json!([{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }]);
    let messages = json!([
        { "role": "developer", "content": "be kind" },
        { "role": "user", "content": parts },
        { "role": "assistant", "content": "so" },
    ]);
    let tools = json!([{ "type": "function", "function": { "name": "look" } }]);
    chat(
        &server,
        json!({ "messages": messages, "tools": tools, "continue_final_message": true, "chat_template_kwargs": { "style": "bold" } }),
    )
    .await;
    chat(
        &server,
        json!({ "messages": [{ "role": "user", "content": "q" }], "tools": tools, "tool_choice": "none" }),
    )
    .await;
    let prompts: Vec<_> = engine.requests().into_iter().map(|request| request.prompt).collect();
    assert_eq!(prompts[0], bytes("style=\"bold\";tool=look;system:be kind;user:a\nb;assistant:so;"));
    assert_eq!(prompts[1], bytes("style=\"plain\";user:q;assistant:"));
}

#[tokio::test]
async fn logprobs_come_with_bytes_and_alternatives() {
    let server = TestServer::replying("é").await;
    let ask = json!({
        "model": MODEL, "messages": [{ "role": "user", "content": "q" }], "max_tokens": 2, "logprobs": true,
        "top_logprobs": 1,
    });
    let body = chat(&server, ask).await;
    assert_eq!(body["choices"][0]["message"]["content"], "é");
    let content = &body["choices"][0]["logprobs"]["content"];
    // Half a character has no text of its own, but bytes.
    assert_eq!(content[0]["token"], "\u{fffd}");
    assert_eq!(content[0]["bytes"], json!([0xc3]));
    assert_eq!(content[0]["logprob"], -0.5);
    assert_eq!(content[0]["top_logprobs"].as_array().unwrap().len(), 1);
    assert_eq!(content[1]["bytes"], json!([0xa9]));
    let bare = json!({ "messages": [{ "role": "user", "content": "q" }], "logprobs": true });
    let bare = chat(&server, bare).await;
    assert_eq!(bare["choices"][0]["logprobs"]["content"][0]["top_logprobs"], json!([]));
}

#[tokio::test]
async fn token_ids_and_prompt_logprobs_are_extensions_beside_the_choices() {
    let server = TestServer::replying("x").await;
    let ask = json!({
        "messages": [{ "role": "user", "content": "q" }], "return_token_ids": true, "prompt_logprobs": 0,
    });
    let body = chat(&server, ask).await;
    assert_eq!(body["prompt_token_ids"], json!(bytes("user:q;assistant:")));
    assert_eq!(body["choices"][0]["token_ids"], json!([120, 256]));
    assert_eq!(body["prompt_logprobs"][0], Value::Null);
    assert_eq!(body["prompt_logprobs"][1]["115"]["decoded_token"], "s");
}
