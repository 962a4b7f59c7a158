//! The split rules that GGUF files refer to by name (`tokenizer.ggml.pre`).
//!
//! A rule is a list of regular expressions; each cuts the pieces left by the one before it, matches and gaps both
//! becoming pieces. The expressions are those of the tokenizer.json files that the names were given to.

/// How a byte-level BPE cuts text before merging.
#[derive(Clone, Copy, Debug)]
pub(super) struct PreTokenizer {
    pub(super) splits: &'static [&'static str],
    /// A piece that is a token is taken whole, whatever the merges say.
    pub(super) ignore_merges: bool,
    /// Text is normalised to NFC first.
    pub(super) nfc: bool,
    /// A beginning-of-sequence token goes first unless the file says otherwise.
    pub(super) add_bos: bool,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const DIGIT: &str = r"\p{N}";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const O200K: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK_CJK: &str = "[\u{4E00}-\u{9FA5}\u{0800}-\u{4E00}\u{AC00}-\u{D7FF}]+";
const DEEPSEEK_LETTERS: &str = r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";
// Carriage return and line feed stand for themselves: the library recognises the rule by this spelling.
const DEEPSEEK3_CJK: &str = "[\u{4E00}-\u{9FA5}\u{3040}-\u{309F}\u{30A0}-\u{30FF}]+";
const DEEPSEEK3: &str = concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^"##,
    "\r\n",
    r"\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[",
    "\r\n",
    r"]*|\s*[",
    "\r\n",
    r"]+|\s+(?!\S)|\s+",
);
const FALCON_PUNCTUATION: &str = r"[\p{P}\$\+<=>\^~\|`]+";

const PLAIN: PreTokenizer =
    PreTokenizer { splits: &[GPT2], ignore_merges: false, nfc: false, add_bos: false };

/// Names and rules. Names that share a rule stand together.
const KNOWN: &[(&[&str], PreTokenizer)] = &[
    (&["gpt-2", "mpt"], PLAIN),
    (
        &["default"],
        PreTokenizer { splits: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"], ..PLAIN },
    ),
    (
        &["smollm", "starcoder", "refact", "command-r", "codeshell"],
        PreTokenizer { splits: &[DIGIT, GPT2], ..PLAIN },
    ),
    (
        &["llama-bpe", "llama3", "llama-v3"],
        PreTokenizer { splits: &[LLAMA3], ignore_merges: true, add_bos: true, ..PLAIN },
    ),
    (&["glm4", "chatglm-bpe"], PreTokenizer { splits: &[LLAMA3], ignore_merges: true, ..PLAIN }),
    (&["qwen2", "deepseek-r1-qwen"], PreTokenizer { splits: &[QWEN2], nfc: true, ..PLAIN }),
    (&["qwen35"], PreTokenizer { splits: &[QWEN35], nfc: true, ..PLAIN }),
    (&["gpt-4o", "llama4"], PreTokenizer { splits: &[O200K], ..PLAIN }),
    (&["minimax-m2"], PreTokenizer { splits: &[O200K], nfc: true, ..PLAIN }),
    (&["tekken"], PreTokenizer { splits: &[TEKKEN], ignore_merges: true, add_bos: true, ..PLAIN }),
    (
        &["deepseek-llm"],
        PreTokenizer {
            splits: &[
                "[\r\n]",
                DEEPSEEK_LETTERS,
                "\\s?[!-/:-~！-／：-～‘-‟\u{3000}-。]+",
                r"\s+$",
                DEEPSEEK_CJK,
                DIGIT,
            ],
            ..PLAIN
        },
    ),
    (
        &["deepseek-coder"],
        PreTokenizer { splits: &["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_CJK, DIGIT], ..PLAIN },
    ),
    (&["deepseek-v3"], PreTokenizer { splits: &[r"\p{N}{1,3}", DEEPSEEK3_CJK, DEEPSEEK3], ..PLAIN }),
    (&["falcon"], PreTokenizer { splits: &[FALCON_PUNCTUATION, GPT2, "[0-9][0-9][0-9]"], ..PLAIN }),
];

/// The rule with this name.
pub(super) fn find(name: &str) -> Option<PreTokenizer> {
    KNOWN.iter().find(|(names, _)| names.contains(&name)).map(|(_, rule)| *rule)
}

/// All names, for error messages.
pub(super) fn known_names() -> String {
    KNOWN.iter().flat_map(|(names, _)| *names).copied().collect::<Vec<_>>().join(", ")
}
