//! Level 0: who built the plugin, and that nothing given to it makes it panic.

use metrale_graph::{Attrs, OpenModel};
use metrale_plugin_api::abi::{ABI_MAJOR, Extension};
use serde_json::{Map, Value as Json, json};

use crate::check::{Done, Failure, Finding, Recorder, passed, skipped};
use crate::subject::{Subject, TestModel};

const PLUGIN: &str = "plugin";
const CYCLES: usize = 100;

pub(crate) fn check(subject: &Subject, recorder: &mut Recorder<'_>) {
    recorder.check("boundary.identity", PLUGIN, || identity(subject));
    recorder.check("boundary.extension", PLUGIN, || extension(subject));
    recorder.check("boundary.broken-config", PLUGIN, || broken_configs(subject));
    for model in &subject.models {
        recorder.check("boundary.hostile-config", &model.name, || hostile_configs(subject, model));
        recorder.check("boundary.unknown-entry", &model.name, || unknown_entry(subject, model));
        recorder.check("boundary.open-close", &model.name, || open_close(subject, model));
    }
}

/// The root module, the manifest and the crate agree.
fn identity(subject: &Subject) -> Result<Done, Failure> {
    let (build, manifest) = (subject.module.build(), &subject.manifest);
    let agree = |what: &str, expected: &str, found: &str, help: &str| -> Result<(), Failure> {
        if expected == found { Ok(()) } else { Err(Finding::new(what, help).wanted(expected, found).into()) }
    };
    let major = ABI_MAJOR.to_string();
    agree(
        "the library was built for another ABI",
        &major,
        &build.abi_major.to_string(),
        "build it with plugin-api 1.x",
    )?;
    agree("plugin.toml names another ABI", &major, &manifest.api.abi.to_string(), "set `api.abi`")?;
    agree(
        "plugin.toml and the crate have different versions",
        build.crate_version.as_str(),
        &manifest.plugin.version,
        "give `plugin.version` the version of Cargo.toml",
    )?;
    let sdk = build.api_version.as_str();
    let minor = |version: &str| -> Option<(u32, u32)> {
        let mut parts = version.split('.').map(|p| p.parse().ok());
        Some((parts.next()??, parts.next()??))
    };
    match (minor(&manifest.api.plugin_api), minor(sdk)) {
        (Some(declared), Some(built)) if declared.0 == built.0 && declared <= built => {}
        _ => {
            return Err(Finding::new(
                "`api.plugin_api` is not an SDK that this one provides",
                "set it to the SDK's major.minor",
            )
            .wanted(format!("major.minor of {sdk}, or an earlier minor"), &manifest.api.plugin_api)
            .into());
        }
    }
    passed(format!(
        "{} {}, SDK {sdk}, ABI {}, {}",
        manifest.plugin.name, manifest.plugin.version, build.abi_major, build.target
    ))
}

/// An extension that nobody knows is null.
fn extension(subject: &Subject) -> Result<Done, Failure> {
    let answer: Extension = subject.module.extension()("metrale.no-such-extension/1".into());
    if answer.is_null() {
        return passed("an unknown id gives null");
    }
    Err(Finding::new(
        "the plugin answers to an extension id that does not exist",
        "return null for unknown ids",
    )
    .into())
}

/// Texts that are no configuration end in an error.
fn broken_configs(subject: &Subject) -> Result<Done, Failure> {
    let deep = "[".repeat(10_000);
    let texts = ["", "{", "null", "[]", "7", "\"config\"", "{}", "{\"model_type\": 1}", "\u{0}", &deep];
    for text in texts {
        let attrs = Attrs::new().with("config.json", text);
        match OpenModel::open(subject.module, &attrs, None) {
            Err(failure) if failure.panicked => {
                return Err(panicked(&format!("config.json is {}", shorten(text)), None, failure));
            }
            Err(failure) if failure.message.is_empty() => {
                return Err(Finding::new(
                    "`open` refuses without a reason",
                    "say what is wrong with the configuration",
                )
                .into());
            }
            Err(_) => {}
            Ok(_) => {
                let what = format!("`open` accepts a config.json that is {}", shorten(text));
                return Err(Finding::new(what, "read every dimension with `config.dim(\"…\")?`").into());
            }
        }
    }
    passed(format!("{} texts refused", texts.len()))
}

/// Each key of a good configuration in turn gone or senseless: an error or a model, never a panic.
fn hostile_configs(subject: &Subject, model: &TestModel) -> Result<Done, Failure> {
    let Some(text) = model.attrs.str("config.json") else { return skipped("it has no config.json") };
    let Ok(Json::Object(config)) = serde_json::from_str(text) else {
        return skipped("config.json is no object");
    };
    if let Err((entry, failure)) = try_config(subject, text) {
        return Err(Failure::Call { entry: entry.map(str::to_owned), failure: failure.into() });
    }
    let mut tried = 0;
    for key in config.keys() {
        for value in [
            None,
            Some(Json::Null),
            Some(json!("x")),
            Some(json!(-1)),
            Some(json!(0)),
            Some(json!(0.5)),
            Some(json!(3)),
            Some(json!([])),
            Some(json!({})),
        ] {
            let shown = value.as_ref().map_or_else(|| "left out".to_owned(), ToString::to_string);
            try_config(subject, &changed(&config, key, value))
                .map_err(|(entry, failure)| panicked(&format!("`{key}` is {shown}"), entry, failure))?;
            tried += 1;
        }
    }
    passed(format!("{tried} configurations, no panic"))
}

fn changed(config: &Map<String, Json>, key: &str, value: Option<Json>) -> String {
    let mut config = config.clone();
    match value {
        Some(value) => config.insert(key.to_owned(), value),
        None => config.remove(key),
    };
    Json::Object(config).to_string()
}

type Panic = (Option<&'static str>, metrale_graph::PluginFailure);

fn try_config(subject: &Subject, text: &str) -> Result<(), Panic> {
    let attrs = Attrs::new().with("config.json", text);
    let model = match OpenModel::open(subject.module, &attrs, None) {
        Ok(model) => model,
        Err(failure) if failure.panicked => return Err((None, failure)),
        Err(_) => return Ok(()),
    };
    for entry in ["info", "text", "lm_head"] {
        if let Err(failure) = model.trace(entry, 0)
            && failure.panicked
        {
            return Err((Some(entry), failure));
        }
    }
    Ok(())
}

fn panicked(when: &str, entry: Option<&str>, mut failure: metrale_graph::PluginFailure) -> Failure {
    failure.message = format!("{} (when {when})", failure.message);
    if failure.help.is_empty() {
        "check the value in `open` and return a PluginError".clone_into(&mut failure.help);
    }
    Failure::Call { entry: entry.map(str::to_owned), failure: failure.into() }
}

/// An entry point that does not exist is refused, and the model still works.
fn unknown_entry(subject: &Subject, model: &TestModel) -> Result<Done, Failure> {
    let open = subject.open(&model.attrs, model.headers.as_ref())?;
    if open.trace("no-such-entry", 0).is_ok() {
        return Err(Finding::new(
            "the plugin traces an entry point that does not exist",
            "use the SDK's `export_plugin!`",
        )
        .into());
    }
    open.trace("info", 0)
        .map_err(|failure| Failure::Call { entry: Some("info".to_owned()), failure: failure.into() })?;
    passed("refused; the model still answers")
}

/// Opened and closed many times, two models at once: each stays itself.
fn open_close(subject: &Subject, model: &TestModel) -> Result<Done, Failure> {
    let describe = |open: &OpenModel| {
        open.info()
            .map_err(|failure| Failure::Call { entry: Some("info".to_owned()), failure: failure.into() })
    };
    let first = subject.open(&model.attrs, model.headers.as_ref())?;
    let expected = describe(&first)?;
    for _ in 0..CYCLES {
        let second = subject.open(&model.attrs, model.headers.as_ref())?;
        if describe(&second)? != expected {
            return Err(Finding::new(
                "a model that is opened again describes itself differently",
                "keep nothing in statics: `open` makes a model from the configuration alone",
            )
            .into());
        }
    }
    if describe(&first)? != expected {
        return Err(Finding::new("a model changed while another was open", "keep nothing in statics").into());
    }
    passed(format!("{CYCLES} times"))
}

fn shorten(text: &str) -> String {
    if text.chars().count() <= 20 {
        format!("{text:?}")
    } else {
        format!("{:?}…", text.chars().take(20).collect::<String>())
    }
}
