//! Dashboards and routers find the engine's metrics under vLLM's names.

use std::time::{Duration, Instant};

use metrics_exporter_prometheus::PrometheusBuilder;

use super::*;
use metrale_core::speculative::{DraftMethod, SpeculativeConfig};

#[test]
fn metrics_have_vllms_names() {
    let recorder = PrometheusBuilder::new().install_recorder().unwrap();
    let limits = RunnerLimits { num_blocks: 30, has_recurrent_state: true, ..limits() };
    let engine = EngineHandle::spawn(Box::new(FakeRunner::new(limits)), SchedulerConfig::default());
    let requests: Vec<_> = prompts(16).iter().map(|p| request(p, greedy(30))).collect();
    run_together(&engine, &requests);
    run_together(&engine, &[request(&[1; 20], greedy(1)), request(&[1; 20], greedy(1))]);
    answer(&mut engine.submit(request(&[1; 20], greedy(1))).unwrap());
    settled(&engine);
    let method = DraftMethod::Mtp;
    let speculative = Some(SpeculativeConfig { method, num_speculative_tokens: 3 });
    let config = SchedulerConfig { speculative, ..SchedulerConfig::default() };
    let runner = FakeRunner::new(RunnerLimits { max_num_drafts: 3, ..limits }).with_drafter(70);
    let drafting = EngineHandle::spawn(Box::new(runner), config);
    run_together(&drafting, &requests);
    let drafts = settled(&drafting).drafts;
    assert!(drafts.num_accepted_per_pos[2] > 0, "{drafts:?}");

    let names = [
        "vllm:num_requests_running 0",
        "vllm:num_requests_waiting 0",
        "vllm:kv_cache_usage_perc 0",
        "vllm:num_preemptions_total ",
        "vllm:prefix_cache_queries_total ",
        "vllm:prefix_cache_hits_total ",
        "vllm:prompt_tokens_total ",
        "vllm:generation_tokens_total ",
        "vllm:iteration_tokens_total_count ",
        "vllm:request_queue_time_seconds_count ",
        "vllm:request_prefill_time_seconds_count ",
        "vllm:request_decode_time_seconds_count ",
        "vllm:request_inference_time_seconds_count ",
    ];
    // The recorder serves the whole process: engines of other tests move the gauges until they are done.
    let deadline = Instant::now() + Duration::from_mins(1);
    let text = loop {
        let text = recorder.render();
        let missing = names.iter().find(|name| !text.lines().any(|line| line.starts_with(**name)));
        let Some(name) = missing else { break text };
        assert!(Instant::now() < deadline, "{name} is missing in:\n{text}");
        std::thread::sleep(Duration::from_millis(20));
    };
    let unused = r#"metrale:prefix_cache_unused_tokens_total{reason="no_state_snapshot"} "#;
    let line = text.lines().find(|line| line.starts_with(unused)).unwrap_or_else(|| panic!("{text}"));
    assert!(!line.ends_with(" 0"), "cached pages without state are counted: {line}");

    let value = |name: &str| -> u64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} is missing in:\n{text}")).parse().unwrap()
    };
    // Engines of other tests count too.
    assert!(value("vllm:spec_decode_num_drafts_total") >= drafts.num_drafts);
    assert!(value("vllm:spec_decode_num_draft_tokens_total") >= drafts.num_draft_tokens);
    assert!(value("vllm:spec_decode_num_accepted_tokens_total") >= drafts.num_accepted_tokens());
    for (position, count) in drafts.num_accepted_per_pos.iter().enumerate() {
        let name = format!("vllm:spec_decode_num_accepted_tokens_per_pos_total{{position=\"{position}\"}}");
        assert!(value(&name) >= *count && *count > 0, "{name}");
    }
}
