//! The thread pool's promises.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use metrale_kernels::cpu::ThreadPool;
use metrale_kernels::cpu::pool::split;

#[test]
fn every_worker_is_called_once_per_run() {
    for threads in [0, 1, 2, 5] {
        let pool = ThreadPool::new(threads);
        for round in 0..200 {
            let calls: Vec<AtomicUsize> = (0..pool.num_threads()).map(|_| AtomicUsize::new(0)).collect();
            pool.run(|worker, workers| {
                assert_eq!(workers, calls.len());
                calls[worker].fetch_add(1, Ordering::Relaxed);
            });
            assert!(calls.iter().all(|c| c.load(Ordering::Relaxed) == 1));
            if round == 100 {
                // Long enough for the workers to park.
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

#[test]
fn ranges_cover_everything_once() {
    let pool = ThreadPool::new(3);
    for (count, grain) in [(0, 1), (1, 1), (7, 3), (1000, 1), (1000, 0), (5, 100)] {
        let seen: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
        pool.for_each(count, grain, |range| {
            range.for_each(|i| {
                seen[i].fetch_add(1, Ordering::Relaxed);
            });
        });
        assert!(seen.iter().all(|c| c.load(Ordering::Relaxed) == 1));
    }
}

#[test]
fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
    let pool = ThreadPool::new(3);
    for culprit in 0..3 {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            pool.run(|worker, _| assert!(worker != culprit, "worker {culprit} fails on purpose"));
        }));
        assert!(result.is_err());
        let calls = AtomicUsize::new(0);
        pool.run(|_, _| {
            calls.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(calls.load(Ordering::Relaxed), 3);
    }
}

#[test]
fn a_nested_run_works_on_the_calling_thread() {
    let pool = ThreadPool::new(2);
    let calls = AtomicUsize::new(0);
    pool.run(|_, _| {
        pool.run(|worker, workers| {
            assert_eq!((worker, workers), (0, 1));
            calls.fetch_add(1, Ordering::Relaxed);
        });
    });
    assert_eq!(calls.load(Ordering::Relaxed), 2);
}

#[test]
fn split_parts_are_adjacent_and_nearly_equal() {
    for count in [0, 1, 7, 64] {
        for parts in [1, 2, 3, 8] {
            let mut at = 0;
            for index in 0..parts {
                let range = split(count, parts, index);
                assert_eq!(range.start, at);
                assert!(range.len() <= count.div_ceil(parts) && range.len() >= count / parts);
                at = range.end;
            }
            assert_eq!(at, count);
        }
    }
}
