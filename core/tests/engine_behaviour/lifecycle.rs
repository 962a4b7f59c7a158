//! Requests come, go and are dropped at any moment; the engine drains in order.

use std::sync::mpsc::channel;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;

#[test]
fn a_thousand_aborts_leak_no_page_and_leave_the_others_unchanged() {
    let limits = RunnerLimits { num_blocks: 200, ..limits() };
    let engine = EngineHandle::spawn(Box::new(FakeRunner::new(limits)), SchedulerConfig::default());
    let kept: Vec<_> = prompts(16).iter().map(|p| request(p, greedy(120))).collect();
    let clients = kept.iter().enumerate().map(|(i, kept)| {
        let (engine, kept) = (engine.clone(), kept.clone());
        std::thread::spawn(move || {
            let mut rng = StdRng::seed_from_u64(i as u64);
            let mut generation = engine.submit(kept.clone()).unwrap();
            let victims = prompts(63);
            let mut dropped = Vec::new();
            for _ in 0..63 {
                let victim = request(&victims[rng.random_range(0..63)], greedy(200));
                let mut victim = engine.submit(victim).unwrap();
                for _ in 0..rng.random_range(0..6) {
                    victim.blocking_next();
                }
                dropped.push(victim);
                if rng.random_bool(0.3) {
                    dropped.clear();
                }
            }
            drop(dropped);
            assert_eq!(answer(&mut generation).tokens, FakeModel::greedy(&kept.prompt, 120, VOCAB_SIZE));
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.join().unwrap();
    }
    assert_no_leak(&engine);
}

#[test]
fn a_dropped_request_has_no_row_in_the_next_step() {
    let (go, wait) = channel::<()>();
    let (log, steps) = channel();
    let runner = FakeRunner::new(limits()).with_hook(move |batch, _| {
        let _ = log.send(batch.seqs.iter().map(|s| s.block_table.clone()).collect::<Vec<_>>());
        wait.recv().unwrap();
        Ok(())
    });
    let engine = EngineHandle::spawn(Box::new(runner), SchedulerConfig::default());
    let mut kept = engine.submit(request(&[1, 2, 3], greedy(4))).unwrap();
    assert_eq!(steps.recv().unwrap().len(), 1);
    let dropped = engine.submit(request(&[4, 5, 6], greedy(50))).unwrap();
    go.send(()).unwrap();
    assert_eq!(steps.recv().unwrap().len(), 2);
    // The second step is running; the drop is obeyed before the third.
    drop(dropped);
    go.send(()).unwrap();
    assert_eq!(steps.recv().unwrap().len(), 1);
    go.send(()).unwrap();
    go.send(()).unwrap();
    assert_eq!(answer(&mut kept).tokens, FakeModel::greedy(&[1, 2, 3], 4, VOCAB_SIZE));
    assert_no_leak(&engine);
}

#[test]
fn a_waiting_request_can_be_dropped() {
    let (go, wait) = channel::<()>();
    let runner = FakeRunner::new(limits()).with_hook(move |_, _| {
        wait.recv().unwrap();
        Ok(())
    });
    let config = SchedulerConfig { max_num_seqs: Some(1), ..SchedulerConfig::default() };
    let engine = EngineHandle::spawn(Box::new(runner), config);
    let mut first = engine.submit(request(&[1], greedy(2))).unwrap();
    let second = engine.submit(request(&[2], greedy(2))).unwrap();
    let mut third = engine.submit(request(&[3], greedy(1))).unwrap();
    drop(second);
    for _ in 0..3 {
        go.send(()).unwrap();
    }
    assert_eq!(answer(&mut first).tokens.len(), 2);
    assert_eq!(answer(&mut third).tokens.len(), 1);
    assert_no_leak(&engine);
}

#[test]
fn draining_refuses_new_requests_and_finishes_running_ones() {
    let (go, wait) = channel::<()>();
    let runner = FakeRunner::new(limits()).with_hook(move |_, _| {
        let _ = wait.recv();
        Ok(())
    });
    let engine = EngineHandle::spawn(Box::new(runner), SchedulerConfig::default());
    let mut running = engine.submit(request(&[1, 2], greedy(10))).unwrap();
    engine.drain();
    assert!(engine.snapshot().draining);
    assert!(matches!(engine.submit(request(&[1], greedy(1))), Err(EngineError::Unavailable(_))));

    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let pending = runtime.block_on(async {
        let mut drained = std::pin::pin!(engine.drained());
        std::future::poll_fn(|cx| std::task::Poll::Ready(drained.as_mut().poll(cx).is_pending())).await
    });
    assert!(pending, "a request is still running");

    drop(go);
    assert_no_leak(&engine);
    assert_eq!(answer(&mut running).tokens.len(), 10);
}

#[test]
fn the_snapshot_shows_what_runs() {
    let (go, wait) = channel::<()>();
    let (log, steps) = channel();
    let runner = FakeRunner::new(limits()).with_hook(move |_, _| {
        let _ = log.send(());
        let _ = wait.recv();
        Ok(())
    });
    let config = SchedulerConfig { max_num_seqs: Some(1), ..SchedulerConfig::default() };
    let engine = EngineHandle::spawn(Box::new(runner), config);
    let before = engine.snapshot();
    let first = engine.submit(request(&[1; 10], greedy(2))).unwrap();
    let second = engine.submit(request(&[1; 10], greedy(2))).unwrap();
    steps.recv().unwrap();
    go.send(()).unwrap();
    steps.recv().unwrap();
    let during = engine.snapshot();
    assert_eq!((during.running, during.waiting, during.block_size), (1, 1, 4));
    assert_eq!((during.num_blocks, during.num_free_blocks), (4095, 4092));
    assert!((during.kv_usage - 3.0 / 4095.0).abs() < 1e-12);
    assert!(during.last_progress > before.last_progress);
    drop((go, first, second));
    assert_no_leak(&engine);
}

#[test]
fn requests_outlive_their_handles() {
    let engine = EngineHandle::spawn(Box::new(FakeRunner::new(limits())), SchedulerConfig::default());
    let mut generation = engine.submit(request(&[1, 2], greedy(30))).unwrap();
    drop(engine);
    assert_eq!(answer(&mut generation).tokens.len(), 30);
    assert!(generation.blocking_next().is_none());
}

#[test]
fn events_arrive_in_async_code_too() {
    let engine = EngineHandle::spawn(Box::new(FakeRunner::new(limits())), SchedulerConfig::default());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let num_events = runtime.block_on(async {
        let mut generation = engine.submit(request(&[1, 2], greedy(30))).unwrap();
        let mut num_events = 0;
        while generation.next().await.is_some() {
            num_events += 1;
        }
        num_events
    });
    assert_eq!(num_events, 31);
}
