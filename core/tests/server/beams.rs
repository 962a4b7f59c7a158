//! Beam search over HTTP: its fields, its choices, its errors.

use metrale_core::sched::{BeamParams, EarlyStopping};
use serde_json::{Value, json};

use crate::support::TestServer;
use crate::support::engine::FakeEngine;

async fn complete(server: &TestServer, body: Value) -> Value {
    let response = server.client.post("/v1/completions", &body).await;
    assert_eq!(response.status, 200, "{}", response.text());
    response.json()
}

#[tokio::test]
async fn hypotheses_are_choices_best_first() {
    let engine = FakeEngine::replying("x");
    let server = TestServer::over(&engine).await;
    let ask = json!({ "prompt": ["a", "b"], "use_beam_search": true, "n": 2, "best_of": 4 });
    let answer = complete(&server, ask).await;
    let choices = answer["choices"].as_array().unwrap();
    let of = |name: &str| choices.iter().map(|c| c[name].clone()).collect::<Value>();
    assert_eq!(of("index"), json!([0, 1, 2, 3]));
    assert_eq!(of("text"), json!(["x0", "x1", "x0", "x1"]));
    assert_eq!(of("beam_score"), json!([-0.5, -1.5, -0.5, -1.5]));
    assert_eq!(of("finish_reason"), json!(["stop", "stop", "stop", "stop"]));
    assert_eq!(answer["usage"]["completion_tokens"], 12);
    assert_eq!(engine.requests().len(), 2, "one search per prompt");
    let expected = BeamParams { num_return: 2, ..BeamParams::new(4) };
    assert_eq!(engine.requests()[0].beams, Some(expected));
}

#[tokio::test]
async fn every_field_reaches_the_engine() {
    let engine = FakeEngine::replying("x");
    let server = TestServer::over(&engine).await;
    let ask = json!({
        "prompt": "a", "num_beams": 3, "length_penalty": 0.6, "early_stopping": "never",
        "no_repeat_ngram_size": 2, "repetition_penalty": 1.2,
    });
    complete(&server, ask).await;
    let request = &engine.requests()[0];
    let expected =
        BeamParams { length_penalty: 0.6, early_stopping: EarlyStopping::Never, ..BeamParams::new(3) };
    assert_eq!(request.beams, Some(expected));
    assert_eq!((request.sampling.no_repeat_ngram_size, request.sampling.repetition_penalty), (2, 1.2));
}

#[tokio::test]
async fn a_width_that_is_not_named_is_n() {
    let engine = FakeEngine::replying("x");
    let server = TestServer::over(&engine).await;
    complete(&server, json!({ "prompt": "a", "use_beam_search": true, "n": 3 })).await;
    complete(&server, json!({ "prompt": "a", "num_beams": 1, "best_of": 1, "length_penalty": 1 })).await;
    let beams: Vec<_> = engine.requests().iter().map(|r| r.beams.map(|b| b.num_beams)).collect();
    assert_eq!(beams, [Some(3), None]);
}

#[tokio::test]
async fn a_stream_and_a_chat_carry_whole_hypotheses() {
    let server = TestServer::replying("x").await;
    let ask = json!({ "prompt": "a", "num_beams": 2, "n": 2, "stream": true });
    let chunks = server.client.post("/v1/completions", &ask).await.chunks();
    let texts: Vec<_> = chunks.iter().map(|c| c["choices"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["x0", "x1"]);
    let ask = json!({ "messages": [{ "role": "user", "content": "q" }], "num_beams": 2 });
    let answer = server.client.post("/v1/chat/completions", &ask).await.json();
    assert_eq!(answer["choices"][0]["message"]["content"], "x0");
    assert_eq!(answer["choices"][0]["beam_score"], -0.5);
}

#[tokio::test]
async fn a_stop_string_cuts_a_hypothesis() {
    let server = TestServer::replying("one two").await;
    let ask = json!({ "prompt": "a", "num_beams": 2, "stop": " t" });
    let choice = &complete(&server, ask).await["choices"][0];
    assert_eq!((&choice["text"], &choice["stop_reason"]), (&json!("one"), &json!(" t")));
}

#[tokio::test]
async fn fields_that_contradict_each_other_are_named() {
    let server = TestServer::replying("x").await;
    for (fields, param, mentions) in [
        (json!({ "use_beam_search": true, "n": 3, "num_beams": 2 }), "n", "number of beams (2)"),
        (json!({ "best_of": 2 }), "best_of", "use_beam_search"),
        (json!({ "length_penalty": 0.5 }), "length_penalty", "use_beam_search"),
        (json!({ "early_stopping": true }), "early_stopping", "use_beam_search"),
        (json!({ "use_beam_search": false, "num_beams": 4 }), "num_beams", "use_beam_search"),
        (json!({ "num_beams": 2, "early_stopping": "soon" }), "early_stopping", "never"),
        (json!({ "num_beams": 0 }), "num_beams", "at least 1"),
        (json!({ "num_beams": 2, "length_penalty": "x" }), "length_penalty", "a number"),
    ] {
        let mut body = json!({ "prompt": "a" });
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let response = server.client.post("/v1/completions", &body).await;
        assert_eq!((response.status, response.error("param").as_str()), (400, param), "{body}");
        assert!(response.error("message").contains(mentions), "{}", response.text());
    }
}
