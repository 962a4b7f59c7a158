//! The qwen3_ssm plugin, interpreted, against golden models.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr, clippy::panic)]

use metrale_tests::interpreter::{self, Check, check_all};

fn holds(check: Check) -> anyhow::Result<bool> {
    let (lines, all_hold) = check_all(metrale_qwen3_ssm::plugin_module(), check)?;
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
    logits_and_hidden_states_match_transformers => whole_pass_matches;
    cached_decoding_matches_transformers => cached_decoding_matches;
    chunked_prefill_equals_whole_prefill => chunks_match_the_whole_pass;
    sequences_of_a_batch_are_independent => sequences_of_a_batch_are_independent;
    mtp_head_matches_transformers => mtp_matches;
    image_rows_and_positions_match_transformers => images_match;
    patches_of_pictures_match_transformers => patches_of_pictures_match;
}
