//! Server-sent events: order, content, errors, and what happens when the client leaves.

use serde_json::{Value, json};

use crate::support::TestServer;
use crate::support::client::Response;
use crate::support::engine::FakeEngine;

async fn stream(server: &TestServer, path: &str, mut body: Value) -> Response {
    body["stream"] = json!(true);
    let response = server.client.post(path, &body).await;
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!(response.headers["content-type"], "text/event-stream");
    assert_eq!(response.headers["cache-control"], "no-cache");
    response
}

fn question() -> Value {
    json!({ "messages": [{ "role": "user", "content": "q" }] })
}

#[tokio::test]
async fn chat_streams_role_then_text_then_reason_then_usage_then_done() {
    let server = TestServer::replying("Hé").await;
    let mut ask = question();
    ask["stream_options"] = json!({ "include_usage": true });
    let response = stream(&server, "/v1/chat/completions", ask).await;
    let chunks = response.chunks();
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({ "role": "assistant", "content": "" }));
    let text: String =
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, "Hé");
    let reasons: Vec<_> =
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["finish_reason"].as_str()).collect();
    assert_eq!(reasons, ["stop"]);
    let (last, others) = chunks.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], 4);
    assert!(others.iter().all(|chunk| chunk["usage"].is_null()));
    assert_eq!(others.last().unwrap()["choices"][0]["finish_reason"], "stop");
    for field in ["id", "created", "model", "object"] {
        assert!(
            chunks.iter().all(|chunk| chunk[field] == chunks[0][field] && !chunk[field].is_null()),
            "{field}"
        );
    }
}

#[tokio::test]
async fn without_stream_options_there_is_no_usage() {
    let server = TestServer::replying("ab").await;
    let chunks = stream(&server, "/v1/completions", json!({ "prompt": "a" })).await.chunks();
    assert!(chunks.iter().all(|chunk| chunk.get("usage").is_none() && !chunk["choices"][0].is_null()));
}

#[tokio::test]
async fn continuous_usage_counts_up_in_every_chunk() {
    let server = TestServer::replying("abc").await;
    let options = json!({ "include_usage": true, "continuous_usage_stats": true });
    let ask = json!({ "prompt": [1, 2], "stream_options": options });
    let chunks = stream(&server, "/v1/completions", ask).await.chunks();
    let counts: Vec<_> =
        chunks.iter().map(|chunk| chunk["usage"]["completion_tokens"].as_u64().unwrap()).collect();
    assert_eq!(counts, [1, 2, 3, 4, 4]);
    assert!(chunks.iter().all(|chunk| chunk["usage"]["prompt_tokens"] == 2));
}

#[tokio::test]
async fn a_streamed_completion_equals_the_whole_one() {
    let server = TestServer::replying("Grüße, STOP und mehr").await;
    let mut ask = json!({
        "prompt": ["ab", "c"], "n": 2, "echo": true, "logprobs": 2, "stop": "STOP", "max_tokens": 30,
        "return_token_ids": true,
    });
    let whole = server.client.post("/v1/completions", &ask).await.json();
    ask["stream_options"] = json!({ "include_usage": true });
    let chunks = stream(&server, "/v1/completions", ask).await.chunks();
    for choice in whole["choices"].as_array().unwrap() {
        let own: Vec<_> = chunks
            .iter()
            .map(|chunk| &chunk["choices"][0])
            .filter(|own| own["index"] == choice["index"])
            .collect();
        let text: String = own.iter().map(|own| own["text"].as_str().unwrap()).collect();
        assert_eq!(choice["text"], text);
        for column in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
            let joined: Vec<_> =
                own.iter().filter_map(|own| own["logprobs"][column].as_array()).flatten().cloned().collect();
            assert_eq!(choice["logprobs"][column], json!(joined), "{column}");
        }
        let ids: Vec<_> = own.iter().flat_map(|own| own["token_ids"].as_array().unwrap()).cloned().collect();
        assert_eq!(choice["token_ids"], json!(ids));
        assert_eq!(choice["prompt_token_ids"], own[0]["prompt_token_ids"]);
        assert_eq!(choice["finish_reason"], own.last().unwrap()["finish_reason"]);
        assert_eq!(choice["stop_reason"], "STOP");
    }
    assert_eq!(chunks.last().unwrap()["usage"], whole["usage"]);
}

#[tokio::test]
async fn tokens_are_sent_as_they_come() {
    let engine = FakeEngine::stepping("ab");
    let server = TestServer::over(&engine).await;
    let body = json!({ "prompt": "a", "stream": true }).to_string();
    let mut live = server.client.open("POST", "/v1/completions", &[], body.as_bytes()).await;
    for expected in ["a", "b"] {
        engine.step(1);
        let piece = String::from_utf8(live.piece().await.unwrap()).unwrap();
        let chunk: Value = serde_json::from_str(piece.trim().strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(chunk["choices"][0]["text"], expected);
    }
}

#[tokio::test]
async fn a_failure_in_the_middle_is_an_error_frame_and_done() {
    let server = TestServer::over(&FakeEngine::failing("abc", 2)).await;
    let response = stream(&server, "/v1/chat/completions", question()).await;
    let chunks = response.chunks();
    let error = &chunks.last().unwrap()["error"];
    assert_eq!(error["type"], "internal_error");
    assert!(error["message"].as_str().unwrap().contains("out of memory"));
    assert!(chunks[..chunks.len() - 1].iter().all(|chunk| chunk.get("error").is_none()));
}

#[tokio::test]
async fn a_streaming_request_stops_when_its_client_leaves() {
    let engine = FakeEngine::stepping(&"a".repeat(100));
    let server = TestServer::over(&engine).await;
    let body = json!({ "prompt": "a", "n": 2, "stream": true, "max_tokens": 100 }).to_string();
    let mut live = server.client.open("POST", "/v1/completions", &[], body.as_bytes()).await;
    engine.step(1);
    live.piece().await.unwrap();
    drop(live);
    let counts = engine.until(|counts| counts.aborted == 2).await;
    assert_eq!((counts.running, counts.finished), (0, 0));
}

#[tokio::test]
async fn a_waiting_request_stops_when_its_client_leaves() {
    let engine = FakeEngine::stepping("abc");
    let server = TestServer::over(&engine).await;
    let body = question().to_string();
    let connection = server.client.connect("POST", "/v1/chat/completions", &[], body.as_bytes()).await;
    engine.until(|counts| counts.running == 1).await;
    drop(connection);
    let counts = engine.until(|counts| counts.running == 0).await;
    assert_eq!((counts.aborted, counts.finished), (1, 0));
}

#[tokio::test]
async fn a_stop_string_in_a_stream_ends_the_engines_work() {
    let engine = FakeEngine::stepping("abSTOP and much more");
    let server = TestServer::over(&engine).await;
    engine.step(6);
    let ask = json!({ "prompt": "a", "stop": "STOP", "max_tokens": 20 });
    let chunks = stream(&server, "/v1/completions", ask).await.chunks();
    assert_eq!(chunks.last().unwrap()["choices"][0]["stop_reason"], "STOP");
    engine.until(|counts| counts.aborted == 1).await;
}
