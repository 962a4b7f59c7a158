//! The nllb plugin, interpreted, against golden models.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr, clippy::panic)]

use metrale_tests::interpreter::{self, Check, check_all};

fn holds(check: Check) -> anyhow::Result<bool> {
    let (lines, all_hold) = check_all(metrale_nllb::plugin_module(), check)?;
    report(&lines);
    Ok(all_hold)
}

#[allow(clippy::print_stdout)]
fn report(lines: &[String]) {
    println!("{}", lines.join("\n"));
}

macro_rules! promises {
    ($($promise:ident => $check:ident;)*) => {$(
        #[test]
        fn $promise() {
            assert!(holds(interpreter::$check).unwrap());
        }
    )*};
}

promises! {
    encoder_and_decoder_match_transformers => translation_matches;
    sequences_of_a_batch_are_independent => translations_of_a_batch_are_independent;
}
