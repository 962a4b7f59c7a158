//! The glm_mtp plugin, interpreted, against golden models.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr, clippy::panic)]

use metrale_reference::{Checkpoint, Model, Sequence};
use metrale_tests::golden::Goldens;
use metrale_tests::interpreter::{self, Check, check_all};
use metrale_tests::own_tables;

fn holds(check: Check) -> anyhow::Result<bool> {
    let (lines, all_hold) = check_all(metrale_glm_mtp::plugin_module(), check)?;
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
}

#[test]
fn an_mtp_layer_uses_an_embedding_and_a_head_of_its_own() {
    let plugin = metrale_glm_mtp::plugin_module();
    let goldens = Goldens::of(plugin).unwrap();
    let golden = goldens.models.iter().find(|g| g.name == "seed0/glm4_moe").unwrap();
    let directory = own_tables::model_directory(golden, 3).unwrap();
    let model = Model::open(plugin, &Checkpoint::read(directory.path()).unwrap(), None).unwrap();

    let (tokens, mut sequence) = (golden.token_ids().unwrap(), Sequence::new());
    let slots = tokens.len() - 1;
    let hidden = model.advance(&mut sequence, &tokens).unwrap().hidden.rows(0..slots);
    let next_ids = own_tables::next_ids(&tokens[1..], 256);
    let (_, logits) = model.mtp(0, &mut sequence, (&hidden, &next_ids), 0).unwrap();
    own_tables::logits_match(golden, &logits).unwrap();
}
