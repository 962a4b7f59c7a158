//! LibreTranslate's endpoints, and languages on OpenAI's.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::support::client::Response;
use crate::support::engine::FakeEngine;
use crate::support::text::bytes;
use crate::support::{TestServer, options, translating};

const ENGLISH: u32 = 6001;
const SPANISH: u32 = 6002;
const END: u32 = 2;

async fn server(engine: &Arc<FakeEngine>) -> TestServer {
    TestServer::with(options(), Some(translating(engine))).await
}

async fn ok(server: &TestServer, path: &str, body: Value) -> Value {
    let response = server.client.post(path, &body).await;
    assert_eq!(response.status, 200, "{}", response.text());
    response.json()
}

fn source(language: u32, text: &str) -> Option<Vec<u32>> {
    Some([&[language], bytes(text).as_slice(), &[END]].concat())
}

fn message(response: &Response) -> String {
    let body = response.json();
    assert_eq!(body.as_object().unwrap().len(), 1, "only `error`: {body}");
    body["error"].as_str().unwrap_or_else(|| panic!("{body}")).to_owned()
}

#[tokio::test]
async fn a_text_is_framed_with_the_tokens_of_its_languages() {
    let engine = FakeEngine::replying("hola");
    let server = server(&engine).await;
    for (from, to) in [("en", "es"), ("eng_Latn", "spa_Latn"), ("English", "es-MX"), ("eng", "SPA")] {
        let ask = json!({ "q": "hello", "source": from, "target": to, "format": "text" });
        assert_eq!(ok(&server, "/translate", ask).await, json!({ "translatedText": "hola" }));
    }
    for request in engine.requests() {
        assert_eq!(request.source, source(ENGLISH, "hello"));
        assert_eq!(request.prompt, [END, SPANISH]);
        assert!(request.sampling.max_tokens > 200, "as long as it takes");
    }
}

#[tokio::test]
async fn a_list_is_answered_with_a_list() {
    let engine = FakeEngine::replying("x");
    let server = server(&engine).await;
    let ask = json!({ "q": ["one", "", "two"], "source": "en", "target": "es" });
    assert_eq!(ok(&server, "/translate", ask).await, json!({ "translatedText": ["x", "", "x"] }));
    assert_eq!(engine.requests().len(), 2, "nothing is asked about an empty text");
    let ask = json!({ "q": [], "source": "en", "target": "es" });
    assert_eq!(ok(&server, "/translate", ask).await, json!({ "translatedText": [] }));
}

#[tokio::test]
async fn auto_finds_the_language_of_each_text() {
    let engine = FakeEngine::replying("x");
    let server = server(&engine).await;
    let texts = ["The king sent messengers to the city.", "El rey envió mensajeros a la ciudad."];
    let answer = ok(&server, "/translate", json!({ "q": texts, "source": "auto", "target": "es" })).await;
    let found = |field: &str| {
        let list = answer["detectedLanguage"].as_array().unwrap();
        list.iter().map(|d| d[field].clone()).collect::<Vec<_>>()
    };
    assert_eq!(found("language"), ["en", "es"]);
    assert!(found("confidence").iter().all(|c| (0.0..=100.0).contains(&c.as_f64().unwrap())), "{answer}");
    let mut sources: Vec<_> = engine.requests().into_iter().map(|r| r.source).collect();
    sources.sort();
    assert_eq!(sources, [source(ENGLISH, texts[0]), source(SPANISH, texts[1])]);
}

#[tokio::test]
async fn alternatives_are_further_hypotheses() {
    let engine = FakeEngine::replying("x");
    let server = server(&engine).await;
    let ask = json!({ "q": "a", "source": "en", "target": "es", "alternatives": 2 });
    let expected = json!({ "translatedText": "x0", "alternatives": ["x1", "x2"] });
    assert_eq!(ok(&server, "/translate", ask).await, expected);
    assert_eq!(engine.requests()[0].beams.map(|b| (b.num_beams, b.num_return)), Some((3, 3)));
    let ask = json!({ "q": ["a"], "source": "en", "target": "es", "alternatives": 1, "num_beams": 5 });
    let expected = json!({ "translatedText": ["x0"], "alternatives": [["x1"]] });
    assert_eq!(ok(&server, "/translate", ask).await, expected);
    assert_eq!(engine.requests()[1].beams.map(|b| (b.num_beams, b.num_return)), Some((5, 2)));
}

#[tokio::test]
async fn sentences_are_translated_one_by_one_if_asked_for() {
    let engine = FakeEngine::replying("x");
    let server = server(&engine).await;
    let ask = json!({ "q": "One. Two.\n\nThree", "source": "en", "target": "es", "split_sentences": true });
    assert_eq!(ok(&server, "/translate", ask).await["translatedText"], "x x\n\nx");
    assert_eq!(engine.requests().len(), 3);
}

#[tokio::test]
async fn forms_are_read_as_libretranslates_client_sends_them() {
    let engine = FakeEngine::replying("x");
    let server = server(&engine).await;
    let kind = [("content-type", "application/x-www-form-urlencoded")];
    let body = b"q=12+is+%C3%A9&source=en&target=es&alternatives=1";
    let response = server.client.send("POST", "/translate", &kind, body).await;
    assert_eq!(response.json(), json!({ "translatedText": "x0", "alternatives": ["x1"] }));
    assert_eq!(engine.requests()[0].source, source(ENGLISH, "12 is é"));
    let response = server.client.send("POST", "/translate", &kind, b"q=a&q=b&source=en&target=es").await;
    assert_eq!(response.json(), json!({ "translatedText": ["x", "x"] }));
}

#[tokio::test]
async fn languages_are_listed_and_detected() {
    let server = server(&FakeEngine::replying("x")).await;
    let listed = server.client.get("/languages").await.json();
    let expected = json!([
        { "code": "en", "name": "English", "model_code": "eng_Latn", "targets": ["en", "es"] },
        { "code": "es", "name": "Spanish", "model_code": "spa_Latn", "targets": ["en", "es"] },
    ]);
    assert_eq!(listed, expected);
    let text = "El rey envió mensajeros a la ciudad por la mañana.";
    assert_eq!(ok(&server, "/detect", json!({ "q": text })).await[0]["language"], "es");
    let lists = ok(&server, "/detect", json!({ "q": [text, "12"] })).await;
    assert_eq!((&lists[0][0]["language"], &lists[1]), (&json!("es"), &json!([])));
}

#[tokio::test]
async fn chat_and_completions_translate_between_named_languages() {
    let engine = FakeEngine::replying("hola");
    let server = server(&engine).await;
    let messages = json!([{ "role": "user", "content": "hello" }]);
    let ask = json!({ "messages": messages, "source_lang": "en", "target_lang": "es" });
    let answer = ok(&server, "/v1/chat/completions", ask).await;
    assert_eq!(answer["choices"][0]["message"]["content"], "hola");
    assert_eq!(answer["usage"]["prompt_tokens"], 9, "source and start of the target");
    let ask = json!({ "prompt": ["hello", "bye"], "src_lang": "en", "tgt_lang": "es" });
    ok(&server, "/v1/completions", ask).await;
    let ask = json!({ "prompt": bytes("hello"), "source_lang": "en", "target_lang": "es" });
    ok(&server, "/v1/completions", ask).await;
    for request in engine.requests().iter().filter(|r| r.source != source(ENGLISH, "bye")) {
        assert_eq!(request.source, source(ENGLISH, "hello"));
        assert_eq!(request.prompt, [END, SPANISH]);
    }
    assert_eq!(engine.requests().len(), 4);
}

#[tokio::test]
async fn bad_translations_are_refused_in_libretranslates_shape() {
    let server = server(&FakeEngine::replying("x")).await;
    let good = || json!({ "q": "a", "source": "en", "target": "es" });
    for (field, value, mentions) in [
        ("q", Value::Null, "`q` is missing"),
        ("q", json!(5), "a string or an array"),
        ("q", json!(["a", 5]), "q[1]"),
        ("target", Value::Null, "--tgt-lang"),
        ("target", json!("spanisch"), "`es` (Spanish)"),
        ("source", json!("tlh"), "none of this model's 2"),
        ("source", json!("eng_Cyrl"), "near it"),
        ("source", json!("auto"), "could not be found out"),
        ("format", json!("html"), "only the format `text`"),
        ("alternatives", json!(-1), "at least 0"),
        ("stream", json!(true), "`stream`"),
        ("n", json!(2), "`n`"),
        ("truncate_prompt_tokens", json!(3), "leave it out"),
    ] {
        let mut body = good();
        body[field] = value;
        // Too short to tell.
        body["q"] = if field == "source" { json!("12") } else { body["q"].take() };
        let response = server.client.post("/translate", &body).await;
        assert_eq!(response.status, 400, "{body}: {}", response.text());
        assert!(message(&response).contains(mentions), "{}", response.text());
    }
    let response = server.client.send("POST", "/translate", &[], b"{").await;
    assert!(response.status == 400 && message(&response).contains("not valid JSON"));
}

#[tokio::test]
async fn a_model_that_does_not_translate_says_so() {
    let server = TestServer::replying("x").await;
    for path in ["/translate", "/detect"] {
        let response = server.client.post(path, &json!({ "q": "a", "target": "es" })).await;
        assert!(response.status == 400 && message(&response).contains("does not translate"));
    }
    assert!(message(&server.client.get("/languages").await).contains("does not translate"));
    let ask = json!({ "prompt": "a", "target_lang": "es" });
    let response = server.client.post("/v1/completions", &ask).await;
    assert_eq!((response.status, response.error("param").as_str()), (400, "target_lang"));
}

#[tokio::test]
async fn openais_endpoints_name_what_is_missing() {
    let server = server(&FakeEngine::replying("x")).await;
    let cases = [
        ("/v1/completions", json!({ "prompt": "a" }), "target_lang"),
        ("/v1/completions", json!({ "prompt": "a", "target_lang": "es", "echo": true }), "echo"),
        ("/v1/completions", json!({ "prompt": [1], "target_lang": "es" }), "source_lang"),
        ("/v1/chat/completions", json!({ "messages": [{ "role": "user", "content": "a" }] }), "target_lang"),
        (
            "/v1/chat/completions",
            json!({ "messages": [{ "role": "user", "content": " " }], "target_lang": "es" }),
            "messages",
        ),
    ];
    for (path, body, param) in cases {
        let response = server.client.post(path, &body).await;
        assert_eq!((response.status, response.error("param").as_str()), (400, param), "{body}");
    }
}

#[tokio::test]
async fn the_api_key_is_taken_from_the_body_too() {
    let engine = FakeEngine::replying("x");
    let options = metrale_core::server::ServerOptions { api_key: Some("secret".to_owned()), ..options() };
    let server = TestServer::with(options, Some(translating(&engine))).await;
    let ask = |key: Option<&str>| json!({ "q": "a", "source": "en", "target": "es", "api_key": key });
    assert_eq!(ok(&server, "/translate", ask(Some("secret"))).await["translatedText"], "x");
    for key in [None, Some("wrong")] {
        let response = server.client.post("/translate", &ask(key)).await;
        assert!(response.status == 401 && message(&response).contains("api_key"), "{}", response.text());
    }
    let response = server.client.get("/languages").await;
    assert!(response.status == 401 && message(&response).contains("API key"));
    let header = [("authorization", "Bearer secret")];
    assert_eq!(server.client.send("GET", "/languages", &header, b"").await.status, 200);
}
