//! What breaks ends the requests it concerns, with a reason, and nothing else.

use std::sync::mpsc::channel;

use super::*;

#[test]
fn a_runner_error_fails_its_requests_and_the_engine_goes_on() {
    let mut num_steps = 0;
    let runner = FakeRunner::new(limits()).with_hook(move |_, _| {
        num_steps += 1;
        if num_steps == 5 { Err(device_error("out of luck")) } else { Ok(()) }
    });
    let engine = EngineHandle::spawn(Box::new(runner), SchedulerConfig::default());
    let found = answer(&mut engine.submit(request(&[1, 2, 3], greedy(50))).unwrap());
    assert_eq!(found.error.as_deref(), Some("fake failed: out of luck"));
    assert_eq!(found.tokens, FakeModel::greedy(&[1, 2, 3], 4, VOCAB_SIZE));

    let next = answer(&mut engine.submit(request(&[1, 2, 3], greedy(50))).unwrap());
    assert_eq!(next.tokens, FakeModel::greedy(&[1, 2, 3], 50, VOCAB_SIZE));
    assert!(engine.snapshot().healthy);
    assert_no_leak(&engine);
}

#[test]
fn pages_of_a_failed_step_are_not_shared() {
    let mut num_steps = 0;
    let runner = FakeRunner::new(limits()).with_hook(move |_, _| {
        num_steps += 1;
        if num_steps == 1 { Err(device_error("no")) } else { Ok(()) }
    });
    let engine = EngineHandle::spawn(Box::new(runner), SchedulerConfig::default());
    answer(&mut engine.submit(request(&[1; 20], greedy(1))).unwrap());
    assert_eq!(answer(&mut engine.submit(request(&[1; 20], greedy(1))).unwrap()).num_cached_tokens, 0);
}

#[test]
fn a_runner_panic_fails_everything_and_marks_the_engine_unhealthy() {
    let (go, wait) = channel::<()>();
    let runner = FakeRunner::new(limits()).with_hook(move |_, _| {
        wait.recv().unwrap();
        panic!("the device is on fire");
    });
    let config = SchedulerConfig { max_num_seqs: Some(2), ..SchedulerConfig::default() };
    let engine = EngineHandle::spawn(Box::new(runner), config);
    let requests: Vec<_> = prompts(5).iter().map(|p| request(p, greedy(9))).collect();
    let mut generations: Vec<_> = requests.iter().map(|r| engine.submit(r.clone()).unwrap()).collect();
    go.send(()).unwrap();
    let errors: Vec<_> = generations.iter_mut().map(|g| answer(g).error.unwrap()).collect();
    assert!(errors[0].contains("the device is on fire"), "{errors:?}");
    assert!(!engine.snapshot().healthy);
    assert!(matches!(engine.submit(requests[0].clone()), Err(EngineError::Unavailable(_))));
    assert_no_leak(&engine);
}

#[test]
fn a_broken_row_fails_its_own_request_only() {
    // The request whose prompt is all 9 gets NaN at its third token; its first page identifies it.
    let mut marked = None;
    let runner = FakeRunner::new(limits()).with_hook(move |batch, logits| {
        let mut first_row = 0;
        for (i, seq) in batch.seqs.iter().enumerate() {
            if batch.token_ids[first_row..first_row + seq.num_tokens] == [9, 9, 9] {
                marked = Some(seq.block_table[0]);
            }
            if marked == Some(seq.block_table[0]) && seq.num_computed == 4 {
                logits.data[i * VOCAB_SIZE + 7] = f32::NAN;
            }
            first_row += seq.num_tokens;
        }
        Ok(())
    });
    let engine = EngineHandle::spawn(Box::new(runner), SchedulerConfig::default());
    let requests = [request(&[8, 8, 8], greedy(20)), request(&[9, 9, 9], greedy(20))];
    let [first, second] = run_together(&engine, &requests).try_into().unwrap();
    let error = second.error.unwrap();
    assert!(error.contains("NaN") && error.contains("token 7"), "{error}");
    assert_eq!(second.tokens.len(), 2);
    assert_eq!(first.tokens, FakeModel::greedy(&[8, 8, 8], 20, VOCAB_SIZE));
    assert_no_leak(&engine);
}

#[test]
fn a_runner_that_returns_the_wrong_shape_is_not_believed() {
    let runner = FakeRunner::new(limits()).with_hook(|_, logits| {
        logits.data.pop();
        Ok(())
    });
    let engine = EngineHandle::spawn(Box::new(runner), SchedulerConfig::default());
    let error = answer(&mut engine.submit(request(&[1], greedy(1))).unwrap()).error.unwrap();
    assert!(error.contains("60 logits"), "{error}");
}

#[test]
fn biases_that_leave_no_token_are_the_requests_own_fault() {
    let engine = EngineHandle::spawn(Box::new(FakeRunner::new(limits())), SchedulerConfig::default());
    let all = (0..VOCAB_SIZE as u32).collect();
    let params = SamplingParams { min_tokens: 1, stop_token_ids: all, ..greedy(3) };
    let error = answer(&mut engine.submit(request(&[1], params)).unwrap()).error.unwrap();
    assert!(error.contains("no token is left"), "{error}");
    assert_no_leak(&engine);
}
