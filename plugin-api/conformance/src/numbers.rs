//! Level 2: in the reference interpreter, every way of running a model computes the same.
//!
//! Weights are the model's own where there is a checkpoint, else random; the promises hold for any.

use metrale_reference::{Checkpoint, Chunk, Forward, Model, Sequence, Tensor};

use crate::check::{Done, Failure, Finding, Recorder, passed, skipped};
use crate::random::{self, SplitMix};
use crate::subject::{MAX_ELEMENTS, Subject, TestModel};
use crate::tracing::trace;

/// Tokens of a test prompt: several windows and convolutions of a small model.
const TOKENS: usize = 24;
/// Of the largest logit: rounding of f32 sums in another order.
const TOLERANCE: f32 = 1e-4;
pub(crate) fn check(subject: &Subject, models: &[&TestModel], recorder: &mut Recorder<'_>) {
    for &model in models {
        let mut loaded = None;
        let ready = recorder.check("numbers.loads", &model.name, || match load(subject, model)? {
            Loaded::Ready(bench) => {
                let text = format!("{} tokens of {}", bench.tokens.len(), bench.vocab_size);
                loaded = Some(bench);
                passed(text)
            }
            Loaded::TooLarge => {
                skipped(format!("more than the {MAX_ELEMENTS} elements that the interpreter takes"))
            }
        });
        let Some(bench) = loaded.filter(|_| ready) else { continue };
        let checks: [(&str, Promise); 7] = [
            ("numbers.finite", Bench::finite),
            ("numbers.reads-input", Bench::reads_input),
            ("numbers.decode-is-prefill", Bench::decode_is_prefill),
            ("numbers.chunks", Bench::chunks),
            ("numbers.rows-independent", Bench::rows_independent),
            ("numbers.restored", Bench::restored),
            ("numbers.mtp", Bench::mtp),
        ];
        for (id, f) in checks {
            recorder.check(id, &model.name, || f(&bench));
        }
    }
}

type Promise = fn(&Bench) -> Result<Done, Failure>;

enum Loaded {
    Ready(Box<Bench>),
    TooLarge,
}

fn load(subject: &Subject, model: &TestModel) -> Result<Loaded, Failure> {
    let made;
    let checkpoint = match (&model.checkpoint, &model.headers) {
        (Some(checkpoint), _) => checkpoint,
        (None, Some(_)) => return Ok(Loaded::TooLarge),
        (None, None) => {
            made = random_checkpoint(subject, model)?;
            &made
        }
    };
    let model = Model::open(subject.module, checkpoint, None)?;
    let vocab_size = model.info().size("vocab_size").unwrap_or(1).max(1);
    let context = model.info().size("context_length").unwrap_or(TOKENS);
    let mut random = SplitMix(7);
    let mut tokens =
        |n: usize| -> Vec<i64> { (0..n).map(|_| (random.next() % vocab_size as u64) as i64).collect() };
    let count = TOKENS.min(context);
    let (tokens, others, source) = (tokens(count), tokens(count), tokens(count / 2));
    Ok(Loaded::Ready(Box::new(Bench { model, vocab_size, tokens, others, source })))
}

fn random_checkpoint(subject: &Subject, model: &TestModel) -> Result<Checkpoint, Failure> {
    let requested = trace(subject, model, None)?.requested()?;
    random::checkpoint(&model.attrs, &requested).map_err(|e| {
        let help = "make the dimensions of the configuration smaller";
        Finding::new(e.to_string(), help).at(&model.name).into()
    })
}

/// A model and two prompts.
struct Bench {
    model: Model,
    vocab_size: usize,
    tokens: Vec<i64>,
    others: Vec<i64>,
    /// For models with an encoder.
    source: Vec<i64>,
}

impl Bench {
    /// A new sequence; its source is encoded where there is an encoder.
    fn sequence(&self) -> Result<Sequence, Failure> {
        let mut sequence = Sequence::new();
        if self.model.encoder().is_some() {
            self.model.encode(&mut sequence, &self.source)?;
        }
        Ok(sequence)
    }

    fn whole(&self, tokens: &[i64]) -> Result<Forward, Failure> {
        Ok(self.model.advance(&mut self.sequence()?, tokens)?)
    }

    fn finite(&self) -> Result<Done, Failure> {
        let whole = self.whole(&self.tokens)?;
        let stages =
            whole.layers.iter().enumerate().map(|(i, x)| {
                (if i == 0 { "the embedding".to_owned() } else { format!("layer {}", i - 1) }, x)
            });
        let stages = stages
            .chain([("the final norm".to_owned(), &whole.hidden), ("the logits".to_owned(), &whole.logits)]);
        for (stage, values) in stages {
            if let Some(bad) = values.data().iter().find(|x| !x.is_finite()) {
                let what = format!("{stage} gives a number that is not finite");
                return Err(Finding::new(what, "look for a division by zero, a root or logarithm of a negative number, or growth from layer to layer")
                    .wanted("finite numbers", bad)
                    .into());
            }
        }
        passed(format!("logits up to {:.3}", largest(&whole.logits)))
    }

    /// Other tokens, other logits: the model looks at what it is given.
    fn reads_input(&self) -> Result<Done, Failure> {
        let (a, b) = (self.whole(&self.tokens)?, self.whole(&self.others)?);
        if differ(&a.logits, &b.logits).is_none() {
            return Err(Finding::new(
                "two different prompts have the same logits",
                "the layers do not use their input `x`",
            )
            .into());
        }
        passed("different prompts, different logits")
    }

    fn decode_is_prefill(&self) -> Result<Done, Failure> {
        self.compare_chunks(&vec![1; self.tokens.len()], "one token at a time")?;
        let half = self.tokens.len() / 2;
        let sizes: Vec<_> =
            std::iter::once(half).chain(std::iter::repeat_n(1, self.tokens.len() - half)).collect();
        self.compare_chunks(&sizes, "a prefill, then one token at a time")?;
        passed("one token at a time = all at once")
    }

    fn chunks(&self) -> Result<Done, Failure> {
        for size in [2, 3, 7, 16] {
            let sizes: Vec<_> = self.tokens.chunks(size).map(<[i64]>::len).collect();
            self.compare_chunks(&sizes, &format!("chunks of {size}"))?;
        }
        passed("chunks of 2, 3, 7, 16 = all at once")
    }

    fn compare_chunks(&self, sizes: &[usize], how: &str) -> Result<(), Failure> {
        let whole = self.whole(&self.tokens)?.logits;
        let (mut sequence, mut start) = (self.sequence()?, 0);
        for size in sizes {
            let found = self.model.advance(&mut sequence, &self.tokens[start..start + size])?.logits;
            same(
                &found,
                &whole.rows(start..start + size),
                || format!("{how}, from token {start}: logits differ from those of the whole prompt at once"),
                "attend causally and only through states: every value that a row takes from earlier rows must come from a cache, and positions from `g.positions()`",
            )?;
            start += size;
        }
        Ok(())
    }

    /// A prefill and a sequence that is being decoded, in one step, give what each gives alone.
    fn rows_independent(&self) -> Result<Done, Failure> {
        let (first, second) = (self.whole(&self.tokens)?, self.whole(&self.others)?);
        let half = self.others.len() / 2;
        let (mut a, mut b) = (self.sequence()?, self.sequence()?);
        self.model.advance(&mut b, &self.others[..half])?;
        let mut chunks = [
            Chunk { sequence: &mut b, token_ids: &self.others[half..=half], images: None },
            Chunk { sequence: &mut a, token_ids: &self.tokens, images: None },
        ];
        let results = self.model.forward(&mut chunks)?;
        let expected = [second.logits.rows(half..half + 1), first.logits];
        for (found, expected) in results.iter().zip(&expected) {
            same(
                &found.logits,
                expected,
                || "a sequence has other logits in a batch than alone".to_owned(),
                "no op may mix rows of different sequences: only state ops look at other rows",
            )?;
        }
        passed("two sequences in one step = each alone")
    }

    /// Drafted tokens that are taken back leave no trace.
    fn restored(&self) -> Result<Done, Failure> {
        let half = self.tokens.len() / 2;
        let mut sequence = self.sequence()?;
        self.model.advance(&mut sequence, &self.tokens[..half])?;
        let snapshot = sequence.clone();
        self.model.advance(&mut sequence, &self.others[..half])?;
        sequence = snapshot;
        let found = self.model.advance(&mut sequence, &self.tokens[half..])?.logits;
        let expected = self.whole(&self.tokens)?.logits.rows(half..self.tokens.len());
        same(
            &found,
            &expected,
            || "a restored sequence continues differently".to_owned(),
            "keep what a sequence carries in states",
        )?;
        passed("restored = never drafted")
    }

    /// The MTP head continued is the MTP head at once.
    fn mtp(&self) -> Result<Done, Failure> {
        if self.model.mtp_entries().is_empty() {
            return skipped("no MTP head");
        }
        let slots = self.tokens.len() - 1;
        let mut sequence = self.sequence()?;
        let hidden = self.model.advance(&mut sequence, &self.tokens)?.hidden.rows(0..slots);
        let next_ids = &self.tokens[1..];
        let (_, whole) = self.model.mtp(0, &mut sequence.clone(), (&hidden, next_ids), 0)?;
        let half = slots / 2;
        self.model.mtp(0, &mut sequence, (&hidden.rows(0..half), &next_ids[..half]), 0)?;
        let (_, rest) =
            self.model.mtp(0, &mut sequence, (&hidden.rows(half..slots), &next_ids[half..]), half)?;
        same(
            &rest,
            &whole.rows(half..slots),
            || "the MTP head in two steps differs from one step".to_owned(),
            "give the head a cache of its own name, and positions",
        )?;
        passed("in two steps = at once")
    }
}

fn same(found: &Tensor, expected: &Tensor, what: impl FnOnce() -> String, help: &str) -> Result<(), Failure> {
    match differ(found, expected) {
        None => Ok(()),
        Some((row, column, f, e)) => {
            let finding = Finding::new(what(), help);
            Err(finding.wanted(format!("{e} (row {row}, token {column})"), f).into())
        }
    }
}

/// The first element that differs: row, column, found, expected.
fn differ(found: &Tensor, expected: &Tensor) -> Option<(usize, usize, f32, f32)> {
    let bound = TOLERANCE * largest(expected).max(f32::MIN_POSITIVE);
    let width = found.width().max(1);
    let mut pairs = found.data().iter().zip(expected.data()).enumerate();
    // A NaN differs from everything.
    let differs = |f: f32, e: f32| (f - e).abs() > bound || (f - e).is_nan();
    pairs.find(|(_, (f, e))| differs(**f, **e)).map(|(i, (f, e))| (i / width, i % width, *f, *e))
}

fn largest(values: &Tensor) -> f32 {
    values.data().iter().fold(0.0, |m: f32, x| m.max(x.abs()))
}
