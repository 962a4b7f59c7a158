//! Configuration through the same door as the commands: flags, environment and file together.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Command, FromArgMatches};

use super::{ConfigError, EngineConfig, Origin, ServerConfig, resolve};

fn command() -> Command {
    let serve = ServerConfig::augment_args(EngineConfig::augment_args(Command::new("serve")));
    let run = EngineConfig::augment_args(Command::new("run")).arg(clap::Arg::new("raw").long("raw"));
    Command::new("metrale").subcommand(serve).subcommand(run)
}

fn with_file(toml: &str, args: &str) -> Result<(EngineConfig, Vec<super::Setting>), ConfigError> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metrale.toml");
    std::fs::write(&path, toml).unwrap();
    let args = args.replace("FILE", path.to_str().unwrap());
    let args: Vec<OsString> = args.split(' ').map(OsString::from).collect();
    let resolved = resolve(&command(), &args)?;
    let config = EngineConfig::from_arg_matches(resolved.matches.subcommand().unwrap().1)?;
    Ok((config, resolved.settings))
}

fn error(toml: &str) -> String {
    with_file(toml, "metrale serve m --config FILE").unwrap_err().to_string()
}

#[test]
fn the_command_line_wins_over_the_file_and_the_file_over_defaults() {
    let toml = "max-num-seqs = 7\nblock_size = 32\nenable-prefix-caching = false\n";
    let (config, settings) = with_file(toml, "metrale serve m --config FILE --max-num-seqs 9").unwrap();
    assert_eq!((config.max_num_seqs, config.block_size, config.max_num_batched_tokens), (9, 32, 2048));
    assert!(!config.prefix_caching());
    let origin = |name: &str| settings.iter().find(|setting| setting.name == name).unwrap().origin.clone();
    assert_eq!(origin("max-num-seqs"), Origin::CommandLine);
    assert_eq!(origin("block-size"), Origin::File);
    assert_eq!(origin("enable-prefix-caching"), Origin::File);
    assert_eq!(origin("max-num-batched-tokens"), Origin::Default);
}

#[test]
fn the_environment_wins_over_the_file_and_loses_to_the_command_line() {
    // Cargo sets this variable for every test.
    let level = clap::Arg::new("level").long("level").env("CARGO_PKG_NAME");
    let config = clap::Arg::new("config")
        .long("config")
        .env("METRALE_CONFIG")
        .value_parser(clap::value_parser!(PathBuf));
    let command = Command::new("x").subcommand(Command::new("go").args([level, config]));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.toml");
    std::fs::write(&path, "level = \"file\"").unwrap();
    let path = path.into_os_string();
    let level = |more: &[&str]| {
        let mut args: Vec<OsString> = ["x", "go", "--config"].map(OsString::from).into();
        args.push(path.clone());
        args.extend(more.iter().map(OsString::from));
        let resolved = resolve(&command, &args).unwrap();
        resolved.settings.into_iter().find(|setting| setting.name == "level").unwrap()
    };
    let from_environment = level(&[]);
    assert_eq!(from_environment.value, env!("CARGO_PKG_NAME"));
    assert_eq!(from_environment.origin, Origin::Environment("CARGO_PKG_NAME".to_owned()));
    assert_eq!(level(&["--level", "flag"]).value, "flag");
}

#[test]
fn every_flag_has_an_environment_twin_of_its_name() {
    for sub in command().get_subcommands() {
        for arg in sub.get_arguments().filter(|arg| arg.get_env().is_some()) {
            let twin = format!("METRALE_{}", arg.get_id().as_str().to_uppercase());
            assert_eq!(arg.get_env().unwrap().to_str(), Some(twin.as_str()));
        }
        let without: Vec<_> = sub
            .get_arguments()
            .filter(|arg| arg.get_env().is_none())
            .map(|arg| arg.get_id().as_str())
            .collect();
        assert!(without.iter().all(|id| ["no_enable_prefix_caching", "raw"].contains(id)), "{without:?}");
    }
}

#[test]
fn tables_and_arrays_of_the_file_become_flag_values() {
    let toml = "
        model = \"m\"
        plugins = [\"a\", \"b\"]
        kv-cache-memory-bytes = \"4G\"
        max-model-len = 4096
        [plugin]
        llama = \"acme\"
        [default-chat-template-kwargs]
        enable_thinking = false
        [override-generation-config]
        temperature = 0.5
        [speculative-config]
        method = \"mtp\"
        num_speculative_tokens = 2
    ";
    let (config, _) = with_file(toml, "metrale serve --config FILE").unwrap();
    assert_eq!(config.model, "m");
    assert_eq!(config.plugins, [PathBuf::from("a"), PathBuf::from("b")]);
    assert_eq!((config.kv_cache_memory_bytes, config.max_model_len), (Some(4 << 30), Some(4096)));
    assert_eq!((config.plugin[0].model_type.as_str(), config.plugin[0].plugin.as_str()), ("llama", "acme"));
    assert_eq!(config.default_chat_template_kwargs.0["enable_thinking"], false);
    assert_eq!(config.override_generation_config.0["temperature"], 0.5);
    assert_eq!(config.speculative_config.unwrap().num_speculative_tokens, 2);
}

#[test]
fn a_file_for_serve_serves_run_too() {
    let (config, settings) =
        with_file("port = 9000\nblock-size = 8\n", "metrale run m --config FILE").unwrap();
    assert_eq!(config.block_size, 8);
    assert!(settings.iter().all(|setting| setting.name != "port"));
}

#[test]
fn mistakes_in_the_file_name_the_file_and_the_way_out() {
    let unknown = error("max-num-seq = 3");
    assert!(unknown.contains("metrale.toml") && unknown.contains("`max-num-seqs`"), "{unknown}");
    let kind = error("block-size = [1, 2]");
    assert!(kind.contains("`block-size` expects a single value, found array"), "{kind}");
    let value = error("block-size = \"many\"");
    assert!(value.contains("metrale.toml") && value.contains("many"), "{value}");
    let drafts = error("[speculative-config]\nmethod = \"mtp\"\nnum_speculative_tokens = 9");
    assert!(drafts.contains("metrale.toml") && drafts.contains("is 9; expected 1 to 3"), "{drafts}");
    assert!(error("= 3").contains("not valid TOML"));
    let missing = resolve(&command(), &["metrale", "serve", "m", "--config", "/nowhere"].map(OsString::from));
    assert!(missing.unwrap_err().to_string().contains("/nowhere"));
}

#[test]
fn mistakes_on_the_command_line_are_not_blamed_on_the_file() {
    let result = with_file("block-size = 8", "metrale serve m --config FILE --block-size x");
    assert!(matches!(result.unwrap_err(), ConfigError::Arguments(_)));
    assert!(matches!(with_file("", "metrale serve --config FILE").unwrap_err(), ConfigError::Arguments(_)));
}

#[test]
fn secrets_are_masked_in_the_effective_configuration() {
    let (_, settings) = with_file("api-key = \"hush\"", "metrale serve m --config FILE").unwrap();
    assert!(settings.iter().all(|setting| !setting.value.contains("hush")));
}

#[test]
fn the_last_spelling_of_a_switch_wins() {
    let on = with_file(
        "enable-prefix-caching = false",
        "metrale serve m --config FILE --no-enable-prefix-caching --enable-prefix-caching",
    );
    assert!(on.unwrap().0.prefix_caching());
    let (off, settings) = with_file("", "metrale serve m --config FILE --no-enable-prefix-caching").unwrap();
    assert!(!off.prefix_caching());
    let shown = settings.iter().find(|setting| setting.name == "enable-prefix-caching").unwrap();
    assert_eq!((shown.value.as_str(), &shown.origin), ("false", &Origin::CommandLine));
}
