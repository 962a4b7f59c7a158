//! Health, models, request ids, and leaving in order.

use std::time::Duration;

use metrale_core::server::{Ending, ListenError, Listener};
use serde_json::json;

use crate::support::engine::FakeEngine;
use crate::support::{MODEL, TestServer, model, options};

#[tokio::test]
async fn a_loading_server_is_alive_but_not_ready() {
    let server = TestServer::with(options(), None).await;
    assert_eq!(server.client.get("/health").await.status, 503);
    assert_eq!(server.client.get("/ping").await.status, 200);
    assert_eq!(server.client.get("/version").await.status, 200);
    let early = server.client.post("/v1/completions", &json!({ "prompt": "a" })).await;
    assert_eq!(early.status, 503);
    assert!(early.error("message").contains("loading"));
    server.app.set_model(model(&FakeEngine::replying("x")));
    assert_eq!(server.client.get("/health").await.status, 200);
}

#[tokio::test]
async fn a_stuck_engine_is_unhealthy_only_while_work_is_pending() {
    let engine = FakeEngine::stepping("abc");
    let server = TestServer::over(&engine).await;
    engine.set_progress(Duration::from_secs(31));
    assert_eq!(server.client.get("/health").await.status, 200);
    let _running = server.client.connect("POST", "/v1/completions", &[], b"{\"prompt\": \"a\"}").await;
    engine.until(|counts| counts.running == 1).await;
    let response = server.client.get("/health").await;
    assert_eq!(response.status, 503);
    assert!(response.error("message").contains("no progress for 31 s"), "{}", response.text());
    assert_eq!(server.client.get("/ping").await.status, 503);
    engine.set_progress(Duration::from_secs(1));
    assert_eq!(server.client.get("/health").await.status, 200);
    engine.break_down();
    assert_eq!(server.client.get("/health").await.status, 503);
}

#[tokio::test]
async fn models_list_every_name_and_the_context_length() {
    let server = TestServer::replying("x").await;
    let body = server.client.get("/v1/models").await.json();
    let ids: Vec<_> = body["data"].as_array().unwrap().iter().map(|card| card["id"].clone()).collect();
    assert_eq!(ids, [MODEL, "alias"]);
    assert_eq!((&body["object"], &body["data"][0]["max_model_len"]), (&json!("list"), &json!(256)));
    let one = server.client.get(&format!("/v1/models/{MODEL}")).await;
    assert_eq!((one.status, one.json()["id"].as_str()), (200, Some(MODEL)));
}

#[tokio::test]
async fn request_ids_are_echoed_or_made() {
    let server = TestServer::replying("x").await;
    let headers = [("x-request-id", "my-id-7")];
    let response = server.client.send("POST", "/v1/completions", &headers, b"{\"prompt\": \"a\"}").await;
    assert_eq!(response.headers["x-request-id"], "my-id-7");
    assert_eq!(response.json()["id"], "cmpl-my-id-7");
    let made: Vec<_> = [server.client.get("/nothing").await, server.client.get("/nothing").await]
        .map(|response| response.headers["x-request-id"].clone())
        .into();
    assert_ne!(made[0], made[1]);
}

#[tokio::test]
async fn load_counts_requests_in_flight() {
    let engine = FakeEngine::stepping("abc");
    let server = TestServer::over(&engine).await;
    assert_eq!(server.client.get("/load").await.json()["server_load"], 0);
    let _running = server.client.connect("POST", "/v1/completions", &[], b"{\"prompt\": \"a\"}").await;
    engine.until(|counts| counts.running == 1).await;
    assert_eq!(server.client.get("/load").await.json()["server_load"], 1);
}

#[tokio::test]
async fn shutdown_finishes_running_requests_and_refuses_new_ones() {
    let engine = FakeEngine::stepping("ab");
    let mut server = TestServer::over(&engine).await;
    let body = json!({ "prompt": "a", "stream": true }).to_string();
    let mut live = server.client.open("POST", "/v1/completions", &[], body.as_bytes()).await;
    engine.step(1);
    let mut text = String::from_utf8(live.piece().await.unwrap()).unwrap();
    server.shut_down();
    while server.client.get("/health").await.status != 503 {}
    assert_eq!(server.client.get("/ping").await.status, 200);
    let refused = server.client.post("/v1/completions", &json!({ "prompt": "a" })).await;
    assert_eq!((refused.status, refused.error("type")), (503, "service_unavailable".to_owned()));
    engine.run_free();
    while let Some(piece) = live.piece().await {
        text.push_str(&String::from_utf8(piece).unwrap());
    }
    assert!(text.contains("\"b\"") && text.ends_with("data: [DONE]\n\n"), "{text}");
    assert_eq!(server.ending().await, Ending::Drained);
}

#[tokio::test]
async fn shutdown_gives_up_when_its_time_is_over() {
    let engine = FakeEngine::stepping("ab");
    let mut server = TestServer::draining_for(Duration::ZERO, options(), Some(model(&engine))).await;
    let _running = server.client.connect("POST", "/v1/completions", &[], b"{\"prompt\": \"a\"}").await;
    engine.until(|counts| counts.running == 1).await;
    server.shut_down();
    assert_eq!(server.ending().await, Ending::TimedOut { unfinished: 1 });
}

#[tokio::test]
async fn a_port_in_use_is_named_with_a_way_out() {
    let server = TestServer::replying("x").await;
    let port: u16 = server.client.address.rsplit(':').next().unwrap().parse().unwrap();
    let error = Listener::tcp("127.0.0.1", port).await.unwrap_err();
    assert!(matches!(error, ListenError::PortInUse { .. }));
    let message = error.to_string();
    assert!(message.contains(&port.to_string()) && message.contains("--port"), "{message}");
}

#[tokio::test]
async fn a_socket_is_taken_over_from_a_dead_server_only() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metrale.sock");
    let first = Listener::unix(&path).await.unwrap();
    assert!(matches!(Listener::unix(&path).await, Err(ListenError::SocketInUse { .. })));
    drop(first);
    assert!(Listener::unix(&path).await.is_ok());
    let file = directory.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    assert!(matches!(Listener::unix(&file).await, Err(ListenError::Refused { .. })));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
}
