//! The conformance kit in a child process, one line of JSON per event.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use metrale_conformance::{Event, Failure, Level, Outcome, Subject, TestModel};
use metrale_reference::ModelError;

use super::{Line, Options, Verdict};
use crate::plugin::probe::{Prober, how_it_ended};
use crate::plugin::{Candidate, PluginError, library};

/// Arguments that make the program run the kit; LIBRARY, FOLDER, level and an optional model follow.
pub const CHILD_ARGS: [&str; 2] = ["plugins", "__verify"];

/// Longest silence between two lines.
const LIMIT: Duration = Duration::from_mins(5);

const EVENT: &str = "metrale-check:";
const DONE: &str = "metrale-check-done";

/// Runs the kit in this process, the child, and hands each line that the parent reads to `print`. `model` is a real model
/// besides the plugin's own, or why it cannot be read.
pub fn run_in_this_process(
    library: &Path,
    folder: &Path,
    level: Level,
    model: Result<Option<TestModel>, String>,
    print: &mut dyn FnMut(&str),
) {
    match subject(library, folder, model) {
        Ok(subject) => run_kit(&subject, level, print),
        Err(text) => print(&encode(&line("package.kit", "plugin", Verdict::Failed, text))),
    }
    print(DONE);
}

fn subject(
    library: &Path,
    folder: &Path,
    model: Result<Option<TestModel>, String>,
) -> Result<Subject, String> {
    let module = library::open(library).map_err(|e| e.to_string())?;
    let kit = |e: String| format!("error[package.kit]: {e}");
    let mut subject = Subject::read(module, folder).map_err(|e| kit(e.to_string()))?;
    subject.models.extend(model.map_err(kit)?);
    Ok(subject)
}

fn run_kit(subject: &Subject, level: Level, print: &mut dyn FnMut(&str)) {
    let name = subject.manifest.plugin.name.clone();
    metrale_conformance::run(subject, level, &mut |event| {
        let line = match event {
            Event::Started { id, subject } => line(id, subject, Verdict::Started, String::new()),
            Event::Finished(check) => {
                let (verdict, text) = match &check.outcome {
                    Outcome::Passed(text) => (Verdict::Passed, text.clone()),
                    Outcome::Skipped(why) => (Verdict::Skipped, why.clone()),
                    Outcome::Failed(failure) => (Verdict::Failed, explain(&name, check.id, failure)),
                };
                line(check.id, &check.subject, verdict, text)
            }
        };
        print(&encode(&line));
    });
}

fn encode(line: &Line) -> String {
    format!("{EVENT}{}", serde_json::to_string(line).unwrap_or_default())
}

fn line(id: &str, subject: &str, verdict: Verdict, text: String) -> Line {
    Line { id: id.to_owned(), subject: subject.to_owned(), verdict, text }
}

/// A failure in the words that `serve` would use.
fn explain(plugin: &str, id: &str, failure: &Failure) -> String {
    match failure {
        Failure::Call { entry, failure } => {
            PluginError::from_failure(plugin, entry.as_deref(), (**failure).clone()).to_string()
        }
        Failure::Run(ModelError::Plugin(failure)) => {
            PluginError::from_failure(plugin, None, (**failure).clone()).to_string()
        }
        Failure::Weights(report) => report.to_string(),
        other => format!("error[{id}]: {other}"),
    }
}

/// Runs the kit in a child process.
pub(super) fn run(
    plugin: &Candidate,
    library: &Path,
    options: &Options,
    prober: &Prober,
    report: &mut dyn FnMut(Line),
) {
    let failed =
        |id: &str, subject: &str, error: PluginError| line(id, subject, Verdict::Failed, error.to_string());
    let mut command = Command::new(prober.program());
    command.args(CHILD_ARGS).arg(library).arg(plugin.folder()).arg(level_name(options.level));
    command.args(&options.model);
    let mut child = match command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn()
    {
        Ok(child) => child,
        Err(e) => {
            let error = PluginError::Probe { path: library.to_owned(), problem: e.to_string() };
            return report(failed("package.kit", "plugin", error));
        }
    };
    let mut running = ("kit".to_owned(), "plugin".to_owned());
    let died = |how: String, (check, subject): &(String, String), report: &mut dyn FnMut(Line)| {
        let error = PluginError::CheckDied { name: plugin.name().to_owned(), check: check.clone(), how };
        report(failed(check, subject, error));
    };
    let lines = lines_of(&mut child);
    loop {
        match lines.recv_timeout(LIMIT) {
            Ok(text) if text == DONE => {
                let _ = child.wait();
                return;
            }
            Ok(text) => match text.strip_prefix(EVENT).map(serde_json::from_str::<Line>) {
                Some(Ok(line)) if line.verdict == Verdict::Started => running = (line.id, line.subject),
                Some(Ok(line)) => report(line),
                // What the plugin prints is its own business.
                _ => {}
            },
            Err(mpsc::RecvTimeoutError::Timeout) => {
                let _ = child.kill();
                let _ = child.wait();
                return died(format!("no answer within {} s", LIMIT.as_secs()), &running, report);
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
    }
    died(child.wait().map_or_else(|e| e.to_string(), how_it_ended), &running, report);
}

/// Lines of the child's output, read on a thread of their own; ends with the output.
fn lines_of(child: &mut Child) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    if let Some(output) = child.stdout.take() {
        std::thread::spawn(move || {
            for text in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(text).is_err() {
                    return;
                }
            }
        });
    }
    receiver
}

fn level_name(level: Level) -> &'static str {
    match level {
        Level::Boundary => "0",
        Level::Trace => "1",
        Level::Numbers => "2",
    }
}
