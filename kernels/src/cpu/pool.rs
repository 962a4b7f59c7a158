//! The thread pool: persistent workers that spin for a while and then park.
//!
//! [`ThreadPool::run`] calls one closure once per worker, the calling thread included, and returns when all calls
//! have returned. While hot a dispatch costs about a microsecond; idle workers park and use no processor time. A
//! panic in any worker is re-raised in the caller after all workers have finished.

use std::any::Any;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{JoinHandle, Thread};

use parking_lot::Mutex;

/// Spin-loop rounds before a worker parks: long enough to cover the gaps inside a decode step.
const SPINS_BEFORE_PARK: u32 = 20_000;
/// Spin-loop rounds before the dispatcher starts to yield while it waits for workers.
const SPINS_BEFORE_YIELD: u32 = 2_000;

type Job = *const (dyn Fn(usize, usize) + Sync);

struct Shared {
    /// Incremented for each dispatch and once more to shut down.
    generation: AtomicUsize,
    /// Workers that have not finished the current dispatch.
    pending: AtomicUsize,
    /// Workers of the current dispatch, the dispatcher included.
    num_workers: AtomicUsize,
    shutdown: AtomicBool,
    /// The current dispatch; written only while `pending` is 0, read only by workers that count in `pending`.
    job: UnsafeCell<Option<Job>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    parked: Vec<AtomicBool>,
}

// SAFETY: `job` is handed over through `generation` (release) and `pending` (acquire), see its comment. The closure
// behind the pointer is `Sync` and outlives the dispatch, because `run` does not return before `pending` is 0.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

/// Persistent worker threads. Dropping the pool joins them.
pub struct ThreadPool {
    shared: Arc<Shared>,
    threads: Vec<(Thread, Option<JoinHandle<()>>)>,
    /// Held during a dispatch.
    dispatch: Mutex<()>,
}

impl std::fmt::Debug for ThreadPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ThreadPool").field("num_threads", &self.num_threads()).finish()
    }
}

impl ThreadPool {
    /// A pool of `num_threads` workers, of which the calling thread of each [`run`](Self::run) is one. Zero counts as
    /// one. If the system refuses a thread, the pool is smaller.
    #[must_use]
    pub fn new(num_threads: usize) -> Self {
        let extra = num_threads.max(1) - 1;
        let shared = Arc::new(Shared {
            generation: AtomicUsize::new(0),
            pending: AtomicUsize::new(0),
            num_workers: AtomicUsize::new(1),
            shutdown: AtomicBool::new(false),
            job: UnsafeCell::new(None),
            panic: Mutex::new(None),
            parked: (0..extra).map(|_| AtomicBool::new(false)).collect(),
        });
        let threads = (0..extra)
            .map_while(|index| {
                let shared = Arc::clone(&shared);
                let builder = std::thread::Builder::new().name(format!("metrale-cpu-{}", index + 1));
                builder.spawn(move || shared.work(index)).ok()
            })
            .map(|handle| (handle.thread().clone(), Some(handle)))
            .collect();
        Self { shared, threads, dispatch: Mutex::new(()) }
    }

    /// Number of workers, the calling thread included.
    #[must_use]
    pub fn num_threads(&self) -> usize {
        self.threads.len() + 1
    }

    /// Calls `f(worker, num_workers)` once for each worker and waits for all of them; the calling thread is worker 0.
    ///
    /// If the pool is already busy (a call from inside `f`, or from another thread), `f(0, 1)` runs on the calling
    /// thread alone. A panic in `f` is re-raised here once all workers are done.
    pub fn run<F: Fn(usize, usize) + Sync>(&self, f: F) {
        let guard = if self.threads.is_empty() { None } else { self.dispatch.try_lock() };
        let Some(_guard) = guard else {
            f(0, 1);
            return;
        };
        let num_workers = self.num_threads();
        self.start(&f);
        let own = catch_unwind(AssertUnwindSafe(|| f(0, num_workers)));
        self.wait();
        if let Err(payload) = own {
            self.shared.panic.lock().take();
            resume_unwind(payload);
        }
        let payload = self.shared.panic.lock().take();
        if let Some(payload) = payload {
            resume_unwind(payload);
        }
    }

    /// Calls `f` for ranges of at most `grain` that together cover `0..count`, in any order and on any worker. Idle
    /// workers take the next range.
    pub fn for_each<F: Fn(Range<usize>) + Sync>(&self, count: usize, grain: usize, f: F) {
        let grain = grain.max(1);
        if count <= grain || self.num_threads() == 1 {
            if count > 0 {
                f(0..count);
            }
            return;
        }
        let next = AtomicUsize::new(0);
        self.run(|_, _| {
            loop {
                let start = next.fetch_add(grain, Ordering::Relaxed);
                if start >= count {
                    break;
                }
                f(start..count.min(start + grain));
            }
        });
    }

    /// Publishes the job and wakes parked workers.
    fn start<'a>(&self, f: &'a (dyn Fn(usize, usize) + Sync + 'a)) {
        let num_workers = self.num_threads();
        let job: *const (dyn Fn(usize, usize) + Sync + 'a) = f;
        #[allow(clippy::transmute_ptr_to_ptr)] // A cast cannot change the lifetime.
        // SAFETY: only the lifetime changes; `run` keeps the closure alive until `wait` has returned.
        let job: Job = unsafe { std::mem::transmute::<*const (dyn Fn(usize, usize) + Sync + 'a), Job>(job) };
        // SAFETY: `pending` is 0 and the dispatch lock is held, so no worker reads `job`.
        unsafe { *self.shared.job.get() = Some(job) };
        self.shared.pending.store(num_workers - 1, Ordering::Relaxed);
        self.shared.num_workers.store(num_workers, Ordering::Relaxed);
        self.shared.generation.fetch_add(1, Ordering::SeqCst);
        self.wake();
    }

    fn wake(&self) {
        for (parked, (thread, _)) in self.shared.parked.iter().zip(&self.threads) {
            if parked.load(Ordering::SeqCst) {
                thread.unpark();
            }
        }
    }

    fn wait(&self) {
        let mut spins = 0u32;
        while self.shared.pending.load(Ordering::Acquire) != 0 {
            spins = spins.saturating_add(1);
            if spins < SPINS_BEFORE_YIELD { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.shutdown.store(true, Ordering::SeqCst);
        self.shared.generation.fetch_add(1, Ordering::SeqCst);
        self.wake();
        for (_, handle) in &mut self.threads {
            // A worker catches the panics of its jobs, so joining cannot fail.
            let _ = handle.take().map(JoinHandle::join);
        }
    }
}

impl Shared {
    fn work(&self, index: usize) {
        let mut seen = 0;
        loop {
            seen = self.next_generation(index, seen);
            if self.shutdown.load(Ordering::SeqCst) {
                return;
            }
            let num_workers = self.num_workers.load(Ordering::Relaxed);
            // SAFETY: this worker counts in `pending`, so the dispatcher keeps the job in place and alive.
            let job = unsafe { *self.job.get() };
            if let Some(job) = job {
                // SAFETY: as above.
                let f = unsafe { &*job };
                if let Err(payload) = catch_unwind(AssertUnwindSafe(|| f(index + 1, num_workers))) {
                    *self.panic.lock() = Some(payload);
                }
            }
            self.pending.fetch_sub(1, Ordering::Release);
        }
    }

    /// Waits until the generation differs from `seen`: first spinning, then parked.
    fn next_generation(&self, index: usize, seen: usize) -> usize {
        for _ in 0..SPINS_BEFORE_PARK {
            let now = self.generation.load(Ordering::Acquire);
            if now != seen {
                return now;
            }
            std::hint::spin_loop();
        }
        let parked = &self.parked[index];
        loop {
            parked.store(true, Ordering::SeqCst);
            let now = self.generation.load(Ordering::SeqCst);
            if now != seen {
                parked.store(false, Ordering::SeqCst);
                return now;
            }
            std::thread::park();
        }
    }
}

/// Part `index` of `parts` nearly equal parts of `0..count`; the first parts are the longer ones.
#[must_use]
pub fn split(count: usize, parts: usize, index: usize) -> Range<usize> {
    let parts = parts.max(1);
    let (base, extra) = (count / parts, count % parts);
    let start = index * base + index.min(extra);
    start..(start + base + usize::from(index < extra)).min(count)
}
