//! Dashboards and routers find the engine's metrics under vLLM's names.

use std::time::{Duration, Instant};

use metrics_exporter_prometheus::PrometheusBuilder;

use super::*;

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
}
