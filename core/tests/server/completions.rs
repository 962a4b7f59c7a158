//! `/v1/completions`, `/tokenize` and `/detokenize` without streaming.

use serde_json::{Value, json};

use crate::support::engine::FakeEngine;
use crate::support::text::{BOS, EOS, bytes};
use crate::support::{MODEL, TestServer, model, options};

async fn complete(server: &TestServer, body: Value) -> Value {
    let response = server.client.post("/v1/completions", &body).await;
    assert_eq!(response.status, 200, "{}", response.text());
    response.json()
}

#[tokio::test]
async fn text_in_gives_text_out_with_usage() {
    let server = TestServer::replying("Hi!").await;
    let body = complete(&server, json!({ "model": MODEL, "prompt": "abc" })).await;
    assert_eq!(body["object"], "text_completion");
    assert_eq!(body["model"], MODEL);
    assert!(body["id"].as_str().unwrap().starts_with("cmpl-"));
    let choice = &body["choices"][0];
    assert_eq!(choice["text"], "Hi!");
    assert_eq!(choice["finish_reason"], "stop");
    assert_eq!(choice["stop_reason"], Value::Null);
    assert_eq!(choice["logprobs"], Value::Null);
    // The prompt has a begin token, the output an end token.
    assert_eq!(body["usage"]["prompt_tokens"], 4);
    assert_eq!(body["usage"]["completion_tokens"], 4);
    assert_eq!(body["usage"]["total_tokens"], 8);
    assert_eq!(body["usage"]["prompt_tokens_details"]["cached_tokens"], 3);
}

#[tokio::test]
async fn every_shape_of_prompt_reaches_the_engine_as_tokens() {
    let engine = FakeEngine::replying("x");
    let server = TestServer::over(&engine).await;
    let prompts = [json!("ab"), json!(["ab", "c"]), json!([1, 2, 3]), json!([[1, 2], [3]])];
    let mut choices = Vec::new();
    for prompt in prompts {
        let body = complete(&server, json!({ "prompt": prompt })).await;
        choices.push(body["choices"].as_array().unwrap().len());
    }
    assert_eq!(choices, [1, 2, 1, 2]);
    let seen: Vec<_> = engine.requests().into_iter().map(|request| request.prompt).collect();
    let expected: [&[u32]; 6] = [&[BOS, 97, 98], &[BOS, 97, 98], &[BOS, 99], &[1, 2, 3], &[1, 2], &[3]];
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn n_choices_are_numbered_by_prompt_and_get_seeds_of_their_own() {
    let engine = FakeEngine::replying("x");
    let server = TestServer::over(&engine).await;
    let body = complete(&server, json!({ "prompt": ["a", "b"], "n": 2, "seed": 7 })).await;
    let indices: Vec<_> =
        body["choices"].as_array().unwrap().iter().map(|c| c["index"].as_u64().unwrap()).collect();
    assert_eq!(indices, [0, 1, 2, 3]);
    let seeds: Vec<_> = engine.requests().iter().map(|request| request.sampling.seed).collect();
    assert_eq!(seeds, [Some(7), Some(8), Some(7), Some(8)]);
    // Each prompt counts once.
    assert_eq!(body["usage"]["prompt_tokens"], 4);
    assert_eq!(body["usage"]["completion_tokens"], 8);
}

#[tokio::test]
async fn sampling_fields_reach_the_engine() {
    let engine = FakeEngine::replying("x");
    let server = TestServer::over(&engine).await;
    complete(
        &server,
        json!({
            "prompt": "a", "temperature": 0.5, "top_p": 0.9, "top_k": -1, "min_p": 0.1, "presence_penalty": 1,
            "frequency_penalty": -1.5, "repetition_penalty": 1.25, "logit_bias": { "65": -100 }, "seed": 3,
            "min_tokens": 1, "max_tokens": 9, "stop_token_ids": [10], "ignore_eos": true, "logprobs": 2,
            "prompt_logprobs": 1,
        }),
    )
    .await;
    let sampling = engine.requests().remove(0).sampling;
    assert_eq!((sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p), (0.5, 0.9, 0, 0.1));
    assert_eq!((sampling.presence_penalty, sampling.frequency_penalty), (1.0, -1.5));
    assert_eq!(sampling.repetition_penalty, 1.25);
    assert_eq!(sampling.logit_bias, [(65, -100.0)]);
    assert_eq!((sampling.seed, sampling.min_tokens, sampling.max_tokens), (Some(3), 1, 9));
    assert_eq!(sampling.stop_token_ids, [10]);
    assert!(sampling.ignore_eos);
    assert_eq!((sampling.logprobs, sampling.prompt_logprobs), (Some(2), Some(1)));
}

#[tokio::test]
async fn model_defaults_hold_until_a_request_overrides_them() {
    let engine = FakeEngine::replying("x");
    let mut served = model(&engine);
    served.defaults.temperature = Some(0.25);
    served.defaults.top_k = Some(20);
    served.defaults.max_new_tokens = Some(5);
    let server = TestServer::with(options(), Some(served)).await;
    complete(&server, json!({ "prompt": "a" })).await;
    complete(
        &server,
        json!({ "prompt": "a", "temperature": 1, "max_tokens": 2, "max_completion_tokens": 3 }),
    )
    .await;
    let sampling: Vec<_> = engine.requests().into_iter().map(|request| request.sampling).collect();
    assert_eq!((sampling[0].temperature, sampling[0].top_k, sampling[0].max_tokens), (0.25, 20, 5));
    assert_eq!((sampling[1].temperature, sampling[1].top_k, sampling[1].max_tokens), (1.0, 20, 3));
}

#[tokio::test]
async fn a_stop_string_ends_the_output_and_the_engines_work() {
    let engine = FakeEngine::replying("one STOP two");
    let server = TestServer::over(&engine).await;
    let ask = |include| json!({ "prompt": "a", "stop": ["STOP"], "include_stop_str_in_output": include });
    let without = complete(&server, ask(false)).await;
    assert_eq!(without["choices"][0]["text"], "one ");
    assert_eq!(without["choices"][0]["finish_reason"], "stop");
    assert_eq!(without["choices"][0]["stop_reason"], "STOP");
    let with = complete(&server, ask(true)).await;
    assert_eq!(with["choices"][0]["text"], "one STOP");
}

#[tokio::test]
async fn a_stop_token_is_counted_and_named_but_not_shown() {
    let server = TestServer::replying("a!b").await;
    let ask = |include| json!({ "prompt": "a", "stop_token_ids": [33], "return_token_ids": true, "include_stop_str_in_output": include });
    let body = complete(&server, ask(false)).await;
    let choice = &body["choices"][0];
    assert_eq!((&choice["text"], &choice["stop_reason"]), (&json!("a"), &json!(33)));
    assert_eq!(choice["token_ids"], json!([97, 33]));
    assert_eq!(choice["prompt_token_ids"], json!([BOS, 97]));
    assert_eq!(complete(&server, ask(true)).await["choices"][0]["text"], "a!");
}

#[tokio::test]
async fn special_tokens_are_shown_on_request() {
    let server = TestServer::replying("a").await;
    let ask =
        |skip| json!({ "prompt": "a", "ignore_eos": true, "max_tokens": 2, "skip_special_tokens": skip });
    assert_eq!(complete(&server, ask(true)).await["choices"][0]["text"], "a");
    assert_eq!(complete(&server, ask(false)).await["choices"][0]["text"], "a<eos>");
}

#[tokio::test]
async fn logprobs_have_the_legacy_shape() {
    let server = TestServer::replying("xy").await;
    let body = complete(&server, json!({ "prompt": "a", "logprobs": 2 })).await;
    let logprobs = &body["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["x", "y", "<eos>"]));
    assert_eq!(logprobs["token_logprobs"], json!([-0.5, -0.5, -0.5]));
    assert_eq!(logprobs["text_offset"], json!([0, 1, 2]));
    assert_eq!(logprobs["top_logprobs"][0], json!({ "x": -0.5, "y": -1.5 }));
    let keys: Vec<_> = logprobs.as_object().unwrap().keys().collect();
    assert_eq!(keys.len(), 4);
}

#[tokio::test]
async fn tokens_can_be_named_by_id() {
    let server = TestServer::replying("x").await;
    let ask = json!({ "prompt": "a", "logprobs": 0, "max_tokens": 1, "return_tokens_as_token_ids": true });
    let logprobs = &complete(&server, ask).await["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["token_id:120"]));
    assert_eq!(logprobs["top_logprobs"], json!([{ "token_id:120": -0.5 }]));
}

#[tokio::test]
async fn echo_scores_the_prompt_without_generating() {
    let engine = FakeEngine::replying("x");
    let server = TestServer::over(&engine).await;
    let ask = json!({ "prompt": "ab", "echo": true, "max_tokens": 0, "logprobs": 1 });
    let body = complete(&server, ask).await;
    let choice = &body["choices"][0];
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!("ab"), &json!("length")));
    let logprobs = &choice["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["<bos>", "a", "b"]));
    assert_eq!(logprobs["token_logprobs"], json!([null, -0.5, -0.5]));
    assert_eq!(logprobs["top_logprobs"], json!([null, { "a": -0.5 }, { "b": -0.5 }]));
    assert_eq!(logprobs["text_offset"], json!([0, 5, 6]));
    assert_eq!(body["usage"]["completion_tokens"], 0);
    assert_eq!(engine.requests()[0].sampling.max_tokens, 0);
}

#[tokio::test]
async fn echo_puts_prompt_and_output_into_one_text_and_one_list() {
    let server = TestServer::replying("x").await;
    let ask = json!({ "prompt": [97, 98], "echo": true, "max_tokens": 1, "logprobs": 0 });
    let choice = &complete(&server, ask).await["choices"][0];
    assert_eq!(choice["text"], "abx");
    assert_eq!(choice["logprobs"]["tokens"], json!(["a", "b", "x"]));
    assert_eq!(choice["logprobs"]["text_offset"], json!([0, 1, 2]));
}

#[tokio::test]
async fn prompt_logprobs_are_keyed_by_token_id() {
    let server = TestServer::replying("x").await;
    let body = complete(&server, json!({ "prompt": [97, 98], "prompt_logprobs": 1 })).await;
    let expected = json!([null, { "98": { "logprob": -0.5, "rank": 1, "decoded_token": "b" } }]);
    assert_eq!(body["choices"][0]["prompt_logprobs"], expected);
}

#[tokio::test]
async fn truncation_keeps_the_end_of_the_prompt() {
    let engine = FakeEngine::replying("x");
    let server = TestServer::over(&engine).await;
    complete(&server, json!({ "prompt": "abcdef", "truncate_prompt_tokens": 2 })).await;
    assert_eq!(engine.requests()[0].prompt, bytes("ef"));
}

#[tokio::test]
async fn output_ends_where_the_context_ends() {
    let engine = FakeEngine::replying("x");
    let server = TestServer::over(&engine).await;
    complete(&server, json!({ "prompt": vec![1; 250] })).await;
    assert_eq!(engine.requests()[0].sampling.max_tokens, 6);
}

#[tokio::test]
async fn without_a_tokenizer_token_ids_are_served_and_text_is_refused() {
    let engine = FakeEngine::replying("x");
    let served = metrale_core::server::ServedModel { text: None, ..model(&engine) };
    let server = TestServer::with(options(), Some(served)).await;
    let ask = json!({ "prompt": [1, 2], "logprobs": 1, "return_token_ids": true });
    let choice = &complete(&server, ask).await["choices"][0];
    assert_eq!(choice["text"], "");
    assert_eq!(choice["token_ids"], json!([120, EOS]));
    assert_eq!(choice["logprobs"]["tokens"], json!(["token_id:120", "token_id:256"]));
    let refused = server.client.post("/v1/completions", &json!({ "prompt": "text" })).await;
    assert_eq!((refused.status, refused.error("param")), (400, "prompt".to_owned()));
    assert!(refused.error("message").contains("without a tokenizer"), "{}", refused.text());
}

#[tokio::test]
async fn tokens_survive_a_round_trip() {
    let server = TestServer::replying("x").await;
    let ask = json!({ "prompt": "hé", "add_special_tokens": false, "return_token_strs": true });
    let tokens = server.client.post("/tokenize", &ask).await.json();
    assert_eq!(tokens["tokens"], json!(bytes("hé")));
    assert_eq!((&tokens["count"], &tokens["max_model_len"]), (&json!(3), &json!(256)));
    assert_eq!(tokens["token_strs"][0], "h");
    let text = server.client.post("/detokenize", &json!({ "tokens": tokens["tokens"] })).await.json();
    assert_eq!(text["prompt"], "hé");
    let chat = json!({ "messages": [{ "role": "user", "content": "q" }] });
    let chat = server.client.post("/tokenize", &chat).await.json();
    assert_eq!(chat["tokens"], json!(bytes("user:q;assistant:")));
}
