//! Every series that the server records moves when it should.

use serde_json::json;

use crate::support::TestServer;
use crate::support::engine::FakeEngine;

/// The value of the series whose name and labels contain all of `parts`.
fn value(metrics: &str, parts: &[&str]) -> f64 {
    let is_wanted = |line: &&str| !line.starts_with('#') && parts.iter().all(|part| line.contains(part));
    let line = metrics.lines().find(is_wanted).unwrap_or_else(|| panic!("{parts:?} in\n{metrics}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn every_request_series_moves() {
    let server = TestServer::replying("abc").await;
    let ask = |more: serde_json::Value| {
        let mut body = json!({ "prompt": "a", "max_tokens": 2 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    server.client.post("/v1/completions", &ask(json!({}))).await;
    let before = server.client.get("/metrics").await.text().to_owned();
    server.client.post("/v1/completions", &ask(json!({ "strange_field": 1 }))).await;
    server.client.post("/v1/completions", &ask(json!({ "max_tokens": 9 }))).await;
    let after = server.client.get("/metrics").await.text().to_owned();
    let series = [
        "vllm:time_to_first_token_seconds_count",
        "vllm:inter_token_latency_seconds_count",
        "vllm:e2e_request_latency_seconds_count",
        "vllm:request_prompt_tokens_sum",
        "vllm:request_generation_tokens_sum",
        "vllm:request_params_n_count",
        "vllm:request_params_max_tokens_count",
        "vllm:request_max_num_generation_tokens_count",
        "metrale:unknown_request_fields_total",
        "vllm:request_success_total{.length",
        "vllm:request_success_total{.stop",
    ];
    for name in series {
        let mut parts: Vec<_> = name.split('.').collect();
        parts.extend(["model_name=\"fake/model\"", "engine=\"0\""]);
        assert!(value(&after, &parts) > value(&before, &parts), "{name} does not move");
    }
    assert!(after.contains("vllm:time_to_first_token_seconds_bucket"));
    assert!(after.contains("le=\"2560\""));
}

#[tokio::test]
async fn failed_and_abandoned_requests_are_counted_by_reason() {
    let failing = TestServer::over(&FakeEngine::failing("abc", 1)).await;
    let count = |text: &str, reason: &str| value(text, &["request_success_total", &format!("\"{reason}\"")]);
    let before = failing.client.get("/metrics").await.text().to_owned();
    failing.client.post("/v1/completions", &json!({ "prompt": "a" })).await;

    let engine = FakeEngine::stepping("abc");
    let slow = TestServer::over(&engine).await;
    let connection = slow.client.connect("POST", "/v1/completions", &[], b"{\"prompt\": \"a\"}").await;
    engine.until(|counts| counts.running == 1).await;
    drop(connection);
    engine.until(|counts| counts.aborted == 1).await;
    let after = slow.client.get("/metrics").await.text().to_owned();
    for reason in ["error", "abort"] {
        assert!(count(&after, reason) > count(&before, reason), "{reason}");
    }
}
