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
// Written as code points: normalising the characters themselves, as some editors do, would reverse ranges.
const DEEPSEEK_LETTERS: &str = concat!(
    r"\s?[A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}",
    r"\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}",
    r"\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}",
    r"\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}",
    r"\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}",
    r"\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}",
    r"\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}",
    r"\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}",
    r"\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}",
    r"\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}",
    r"\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}",
    r"\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}",
    r"\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}",
    r"\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}]+",
);
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
