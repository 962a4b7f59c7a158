//! Looks at a library file without running any of it.
//!
//! A file that passes can be given to the dynamic linker: it is a shared object for this machine and no segment or
//! table reaches past its end (mapping a truncated library kills the process with SIGBUS).

use std::path::Path;

use object::elf::{self, FileHeader64};
use object::endian::Endianness;
use object::read::elf::{Dyn, FileHeader, ProgramHeader, Sym};

use super::PluginError;

/// What the dynamic linker would see.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct LinkFacts {
    /// Names that the library defines for others.
    pub exports: Vec<String>,
    /// Libraries that it needs.
    pub needed: Vec<String>,
    /// Folders that it wants searched for them.
    pub run_paths: Vec<String>,
}

const HEADER_BYTES: usize = 64;

/// Checks the bytes of the file at `path` and reads its dynamic section.
///
/// # Errors
/// [`PluginError::NotALibrary`], with what was expected and found.
pub fn read(path: &Path, bytes: &[u8]) -> Result<LinkFacts, PluginError> {
    let file = File { path, bytes };
    file.check_ident()?;
    let header = FileHeader64::<Endianness>::parse(bytes)
        .map_err(|e| file.wrong("its header is damaged", "a valid ELF header", e.to_string()))?;
    let endian =
        header.endian().map_err(|e| file.wrong("its header is damaged", "a byte order", e.to_string()))?;
    file.check_header(header, endian)?;
    file.check_ranges(header, endian)?;
    file.link_facts(header, endian)
        .map_err(|e| file.wrong("its dynamic section is damaged", "readable tables", e.to_string()))
}

struct File<'a> {
    path: &'a Path,
    bytes: &'a [u8],
}

type Header = FileHeader64<Endianness>;

impl File<'_> {
    fn wrong(&self, what: &str, expected: impl Into<String>, found: impl Into<String>) -> PluginError {
        PluginError::NotALibrary {
            path: self.path.to_owned(),
            what: what.to_owned(),
            expected: expected.into(),
            found: found.into(),
        }
    }

    fn check_ident(&self) -> Result<(), PluginError> {
        let bytes = self.bytes;
        if !bytes.starts_with(&elf::ELFMAG) {
            return Err(self.wrong("it is not an ELF file", "the bytes 7f 45 4c 46", beginning(bytes)));
        }
        if bytes.len() < HEADER_BYTES {
            let found = format!("{} bytes", bytes.len());
            return Err(self.wrong("it is truncated", format!("a header of {HEADER_BYTES} bytes"), found));
        }
        if bytes[4] != elf::ELFCLASS64.0 {
            let found =
                format!("class {}", if bytes[4] == 1 { "32-bit".into() } else { bytes[4].to_string() });
            return Err(self.wrong("it has another word size", "class 64-bit", found));
        }
        if bytes[5] != elf::ELFDATA2LSB.0 {
            let found = if bytes[5] == 2 { "big endian".into() } else { format!("byte order {}", bytes[5]) };
            return Err(self.wrong("it has another byte order", "little endian", found));
        }
        Ok(())
    }

    fn check_header(&self, header: &Header, endian: Endianness) -> Result<(), PluginError> {
        let machine = header.e_machine(endian).0;
        if machine != MACHINE {
            let (expected, found) = (machine_name(MACHINE), machine_name(machine));
            return Err(self.wrong("it is for another machine", expected, found));
        }
        let kind = header.e_type(endian).0;
        if kind != elf::ET_DYN.0 {
            let found = match kind {
                1 => "an object file".to_owned(),
                2 => "a program".to_owned(),
                4 => "a core dump".to_owned(),
                other => format!("type {other}"),
            };
            return Err(self.wrong("it is not a shared object", "a shared object", found));
        }
        Ok(())
    }

    /// Everything that the headers point to lies inside the file.
    fn check_ranges(&self, header: &Header, endian: Endianness) -> Result<(), PluginError> {
        let size = self.bytes.len() as u64;
        let inside = |what: &str, offset: u64, length: u64| match offset.checked_add(length) {
            Some(end) if end <= size => Ok(()),
            end => {
                let end = end.map_or_else(|| "more than 2^64".to_owned(), |e| e.to_string());
                Err(self.wrong(
                    "it is truncated",
                    format!("{end} bytes, for {what}"),
                    format!("{size} bytes"),
                ))
            }
        };
        let table = |count: u16, entry: u16| u64::from(count) * u64::from(entry);
        let programs = table(header.e_phnum(endian), header.e_phentsize(endian));
        inside("the program headers", header.e_phoff(endian), programs)?;
        let sections = table(header.e_shnum(endian), header.e_shentsize(endian));
        inside("the section headers", header.e_shoff(endian), sections)?;
        let segments = header
            .program_headers(endian, self.bytes)
            .map_err(|e| self.wrong("its program headers are damaged", "a valid table", e.to_string()))?;
        for (number, segment) in segments.iter().enumerate() {
            inside(&format!("segment {number}"), segment.p_offset(endian), segment.p_filesz(endian))?;
        }
        if !segments.iter().any(|s| s.p_type(endian) == elf::PT_DYNAMIC) {
            return Err(self.wrong("it is not a shared object", "a dynamic section", "none"));
        }
        Ok(())
    }

    fn link_facts(&self, header: &Header, endian: Endianness) -> object::read::Result<LinkFacts> {
        let sections = header.sections(endian, self.bytes)?;
        let mut facts = LinkFacts::default();
        let symbols = sections.symbols(endian, self.bytes, elf::SHT_DYNSYM)?;
        for symbol in symbols.iter() {
            if !symbol.is_undefined(endian) && !symbol.is_local() {
                let name = symbols.symbol_name(endian, symbol)?;
                facts.exports.push(String::from_utf8_lossy(name).into_owned());
            }
        }
        facts.exports.sort();
        if let Some((entries, strings)) = sections.dynamic(endian, self.bytes)? {
            let strings = sections.strings(endian, self.bytes, strings)?;
            let text = |entry: &elf::Dyn64<Endianness>| -> object::read::Result<String> {
                Ok(String::from_utf8_lossy(entry.string(endian, strings)?).into_owned())
            };
            for entry in entries {
                match entry.tag(endian) {
                    elf::DT_NEEDED => facts.needed.push(text(entry)?),
                    elf::DT_RPATH | elf::DT_RUNPATH => facts.run_paths.push(text(entry)?),
                    elf::DT_NULL => break,
                    _ => {}
                }
            }
        }
        Ok(facts)
    }
}

const MACHINE: u16 = if cfg!(target_arch = "x86_64") {
    elf::EM_X86_64.0
} else if cfg!(target_arch = "aarch64") {
    elf::EM_AARCH64.0
} else {
    elf::EM_NONE.0
};

fn machine_name(machine: u16) -> String {
    match machine {
        3 => "x86 (machine 3)".to_owned(),
        40 => "ARM (machine 40)".to_owned(),
        62 => "x86-64 (machine 62)".to_owned(),
        183 => "AArch64 (machine 183)".to_owned(),
        243 => "RISC-V (machine 243)".to_owned(),
        other => format!("machine {other}"),
    }
}

fn beginning(bytes: &[u8]) -> String {
    let start = &bytes[..bytes.len().min(16)];
    match std::str::from_utf8(start) {
        Ok("") => "an empty file".to_owned(),
        Ok(text) if text.chars().all(|c| !c.is_control() || c.is_whitespace()) => format!("text, {text:?}"),
        _ => {
            let hex: Vec<_> = start.iter().take(4).map(|b| format!("{b:02x}")).collect();
            format!("the bytes {}", hex.join(" "))
        }
    }
}
