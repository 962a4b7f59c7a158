//! Bad requests: the right status, OpenAI's body, the field at fault.

use serde_json::{Value, json};

use crate::support::client::Response;
use crate::support::engine::FakeEngine;
use crate::support::{MODEL, TestServer, model, options};

fn assert_error(response: &Response, status: u16, param: Option<&str>, mentions: &[&str]) {
    assert_eq!(response.status, status, "{}", response.text());
    let error = &response.json()["error"];
    assert_eq!(error.as_object().unwrap().len(), 4, "{error}");
    assert!(error["type"].is_string());
    assert_eq!(error["param"].as_str(), param, "{error}");
    for text in mentions {
        assert!(error["message"].as_str().unwrap().contains(text), "{error} does not mention {text}");
    }
}

#[tokio::test]
async fn wrong_types_are_named_with_path_expected_and_found() {
    let server = TestServer::replying("x").await;
    let user = |content: Value| json!({ "messages": [{ "role": "user", "content": content }] });
    let with = |mut body: Value, field: &str, value: Value| {
        body[field] = value;
        body
    };
    let completion = || json!({ "prompt": "a" });
    let cases = [
        ("/v1/completions", json!([1]), "", "an object", "an array"),
        ("/v1/completions", json!({ "prompt": true }), "prompt", "a string, an array", "the boolean true"),
        ("/v1/completions", json!({ "prompt": ["a", 1] }), "prompt[1]", "a string", "the number 1"),
        ("/v1/completions", json!({ "prompt": [1, "a"] }), "prompt[1]", "an integer", "a string"),
        (
            "/v1/completions",
            json!({ "prompt": [[1], [1.5]] }),
            "prompt[1][0]",
            "an integer",
            "the number 1.5",
        ),
        (
            "/v1/completions",
            with(completion(), "max_tokens", json!("9")),
            "max_tokens",
            "an integer",
            "a string",
        ),
        (
            "/v1/completions",
            with(completion(), "temperature", json!([])),
            "temperature",
            "a number",
            "an array",
        ),
        ("/v1/completions", with(completion(), "stream", json!("yes")), "stream", "a boolean", "a string"),
        ("/v1/completions", with(completion(), "stop", json!(["a", {}])), "stop[1]", "a string", "an object"),
        (
            "/v1/completions",
            with(completion(), "logit_bias", json!({"5": "x"})),
            "logit_bias.5",
            "a number",
            "a string",
        ),
        ("/v1/chat/completions", json!({ "messages": "hi" }), "messages", "an array", "a string"),
        ("/v1/chat/completions", json!({ "messages": [3] }), "messages[0]", "an object", "the number 3"),
        (
            "/v1/chat/completions",
            user(json!(5)),
            "messages[0].content",
            "a string or an array",
            "the number 5",
        ),
        (
            "/v1/chat/completions",
            user(json!([{ "type": "text", "text": 1 }])),
            "messages[0].content[0].text",
            "a string",
            "the number 1",
        ),
        (
            "/v1/chat/completions",
            with(user(json!("a")), "tools", json!([1])),
            "tools[0]",
            "an object",
            "the number 1",
        ),
    ];
    for (path, body, param, expected, found) in cases {
        let response = server.client.post(path, &body).await;
        let expected = format!("expected {expected}");
        assert_error(&response, 400, Some(param), &[&expected, &format!("found {found}")]);
    }
}

#[tokio::test]
async fn values_out_of_range_are_named_with_their_range() {
    let server = TestServer::replying("x").await;
    let cases = [
        ("temperature", json!(-0.1)),
        ("top_p", json!(0)),
        ("top_p", json!(1.5)),
        ("top_k", json!(-2)),
        ("min_p", json!(2)),
        ("presence_penalty", json!(3)),
        ("frequency_penalty", json!(-3)),
        ("repetition_penalty", json!(0)),
        ("n", json!(0)),
        ("n", json!(100_000)),
        ("max_tokens", json!(0)),
        ("max_tokens", json!(-1)),
        ("min_tokens", json!(17)),
        ("logprobs", json!(6)),
        ("prompt_logprobs", json!(-1)),
        ("stop_token_ids", json!([258])),
        ("truncate_prompt_tokens", json!(0)),
        ("stop", json!("")),
    ];
    for (field, value) in cases {
        let response = server.client.post("/v1/completions", &json!({ "prompt": "a", field: value })).await;
        assert_eq!(response.status, 400, "{field}");
        assert!(response.error("param").starts_with(field), "{field}: {}", response.text());
        assert!(response.error("message").contains("expected"), "{}", response.text());
    }
    let outside = server.client.post("/v1/completions", &json!({ "prompt": [1, 258] })).await;
    assert_error(&outside, 400, Some("prompt[1]"), &["258"]);
    let empty =
        server.client.post("/v1/completions", &json!({ "prompt": "", "add_special_tokens": false })).await;
    assert_error(&empty, 400, Some("prompt"), &["empty"]);
}

#[tokio::test]
async fn a_prompt_beyond_the_context_is_refused_with_the_numbers() {
    let server = TestServer::replying("x").await;
    let ask = json!({ "prompt": vec![1; 200], "max_tokens": 100 });
    let response = server.client.post("/v1/completions", &ask).await;
    assert_error(&response, 400, Some("prompt"), &["256", "200", "100", "300"]);
    assert_eq!(response.error("code"), "context_length_exceeded");
    let full = server.client.post("/v1/completions", &json!({ "prompt": vec![1; 256] })).await;
    assert_eq!(full.error("code"), "context_length_exceeded");
    let messages = json!([{ "role": "user", "content": "a".repeat(300) }]);
    let chat = server.client.post("/v1/chat/completions", &json!({ "messages": messages })).await;
    assert_eq!(
        (chat.error("code"), chat.error("param")),
        ("context_length_exceeded".into(), "messages".into())
    );
}

#[tokio::test]
async fn fields_that_would_change_the_output_are_refused_unless_neutral() {
    let server = TestServer::replying("x").await;
    let completion = |field: &str, value: &Value| json!({ "prompt": "a", field: value });
    for (field, value, neutral) in [
        ("suffix", json!("z"), json!("")),
        ("guided_regex", json!("a*"), Value::Null),
        ("bad_words", json!(["x"]), json!([])),
        ("response_format", json!({ "type": "json_object" }), json!({ "type": "text" })),
        ("spaces_between_special_tokens", json!(false), json!(true)),
    ] {
        let refused = server.client.post("/v1/completions", &completion(field, &value)).await;
        assert_error(&refused, 400, Some(field), &[field, "not supported yet"]);
        let accepted = server.client.post("/v1/completions", &completion(field, &neutral)).await;
        assert_eq!(accepted.status, 200, "{field}: {}", accepted.text());
    }
    let messages = json!([{ "role": "user", "content": "q" }]);
    for choice in [json!("required"), json!({ "type": "function", "function": { "name": "f" } })] {
        let ask = json!({ "messages": messages, "tool_choice": choice });
        let refused = server.client.post("/v1/chat/completions", &ask).await;
        assert_error(&refused, 400, Some("tool_choice"), &["not supported yet"]);
    }
    let image = json!([{ "role": "user", "content": [{ "type": "image_url", "image_url": {} }] }]);
    let refused = server.client.post("/v1/chat/completions", &json!({ "messages": image })).await;
    assert_error(&refused, 400, Some("messages[0].content[0].image_url.url"), &["is missing"]);
    let part = json!({ "type": "image_url", "image_url": { "url": "data:image/png;base64,AA==" } });
    let image = json!([{ "role": "user", "content": [part] }]);
    let refused = server.client.post("/v1/chat/completions", &json!({ "messages": image })).await;
    assert_error(&refused, 400, Some("messages[0].content[0].image_url.url"), &["text only"]);
    let sound = json!([{ "role": "user", "content": [{ "type": "input_audio", "input_audio": {} }] }]);
    let refused = server.client.post("/v1/chat/completions", &json!({ "messages": sound })).await;
    assert_error(&refused, 400, Some("messages[0].content[0].type"), &["input_audio"]);
}

#[tokio::test]
async fn combinations_that_make_no_sense_are_refused() {
    let server = TestServer::replying("x").await;
    let user = json!([{ "role": "user", "content": "q" }]);
    let cases = [
        ("/v1/completions", json!({ "prompt": "a", "stream_options": {} }), "stream_options"),
        (
            "/v1/completions",
            json!({ "prompt": "a", "stream": true, "prompt_logprobs": 1 }),
            "prompt_logprobs",
        ),
        ("/v1/chat/completions", json!({ "messages": user, "top_logprobs": 1 }), "top_logprobs"),
        ("/v1/chat/completions", json!({ "messages": [] }), "messages"),
        ("/v1/chat/completions", json!({ "messages": [{ "content": "q" }] }), "messages[0].role"),
        ("/v1/chat/completions", json!({ "messages": [{ "role": "user" }] }), "messages[0].content"),
        ("/v1/chat/completions", json!({ "messages": [{ "role": "wizard", "content": "q" }] }), "messages"),
        (
            "/v1/chat/completions",
            json!({ "messages": user, "add_generation_prompt": true, "continue_final_message": true }),
            "continue_final_message",
        ),
    ];
    for (path, body, param) in cases {
        assert_error(&server.client.post(path, &body).await, 400, Some(param), &[]);
    }
}

#[tokio::test]
async fn unreadable_bodies_are_client_errors() {
    let server = TestServer::replying("x").await;
    for body in [&b"{\"prompt\": \"\xff\xfe\"}"[..], b"{\"prompt\": ", b"", b"\0\0\0"] {
        let response = server.client.send("POST", "/v1/completions", &[], body).await;
        assert_error(&response, 400, None, &["not valid JSON"]);
    }
    let headers = [("content-type", "text/plain")];
    let response = server.client.send("POST", "/v1/completions", &headers, b"{}").await;
    assert_error(&response, 400, None, &["application/json", "text/plain"]);
}

#[tokio::test]
async fn bodies_over_the_limit_are_refused_with_the_limit() {
    let server = TestServer::replying("x").await;
    let body = vec![b' '; (1 << 16) + 1];
    let response = server.client.send("POST", "/v1/completions", &[], &body).await;
    assert_error(&response, 413, None, &["65536", "--max-body-bytes"]);
    let mut chunked = format!("{:x}\r\n", body.len()).into_bytes();
    chunked.extend(&body);
    chunked.extend(b"\r\n0\r\n\r\n");
    let response = server.client.send_chunked("/v1/completions", &chunked).await;
    assert_error(&response, 413, None, &["65536"]);
}

#[tokio::test]
async fn unknown_models_paths_and_methods_are_told_apart() {
    let server = TestServer::replying("x").await;
    let response = server.client.post("/v1/completions", &json!({ "model": "gpt", "prompt": "a" })).await;
    assert_error(&response, 404, Some("model"), &["gpt", MODEL]);
    assert_eq!(response.error("code"), "model_not_found");
    let response = server.client.get("/v1/nothing").await;
    assert_error(&response, 404, None, &["/v1/nothing"]);
    let response = server.client.get("/v1/completions").await;
    assert_error(&response, 405, None, &["GET"]);
    assert_eq!(response.headers["allow"], "POST");
    let model = server.client.get("/v1/models/gpt").await;
    assert_eq!(model.error("code"), "model_not_found");
}

#[tokio::test]
async fn the_api_key_guards_everything_but_probes_and_metrics() {
    let mut options = options();
    options.api_key = Some("secret".to_owned());
    let server = TestServer::with(options, Some(model(&FakeEngine::replying("x")))).await;
    for path in ["/health", "/ping", "/metrics", "/version"] {
        assert_eq!(server.client.get(path).await.status, 200, "{path}");
    }
    for path in ["/v1/models", "/load", "/nothing", "/v1/completions"] {
        let response = server.client.get(path).await;
        assert_error(&response, 401, None, &["Authorization: Bearer"]);
    }
    for (header, status) in
        [("Bearer secret", 200), ("bearer secret", 200), ("Bearer secre", 401), ("secret", 401)]
    {
        let response = server.client.send("GET", "/v1/models", &[("authorization", header)], b"").await;
        assert_eq!(response.status, status, "{header}");
    }
}

#[tokio::test]
async fn engine_failures_are_server_errors() {
    let server = TestServer::over(&FakeEngine::failing("abc", 2)).await;
    let response = server.client.post("/v1/completions", &json!({ "prompt": "a" })).await;
    assert_error(&response, 500, None, &["linear/1", "out of memory"]);
}
