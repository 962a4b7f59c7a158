//! A cursor over untrusted bytes: every read is checked against the end, every count against the room that is left.

use std::fmt::Display;

use super::CheckpointError;

/// Reads little-endian values. `what` names the thing being read and is only formatted for an error.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0 }
    }

    /// Byte offset of the next read.
    pub(super) fn position(&self) -> u64 {
        self.position as u64
    }

    fn remaining(&self) -> u64 {
        (self.bytes.len() - self.position) as u64
    }

    pub(super) fn take(&mut self, n: u64, what: &dyn Display) -> Result<&'a [u8], CheckpointError> {
        if n > self.remaining() {
            return Err(CheckpointError::Truncated {
                what: what.to_string(),
                at: self.position(),
                needed: n,
                file_bytes: self.bytes.len() as u64,
            });
        }
        let taken = &self.bytes[self.position..self.position + n as usize];
        self.position += n as usize;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self, what: &dyn Display) -> Result<[u8; N], CheckpointError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64, what)?);
        Ok(array)
    }

    pub(super) fn u32(&mut self, what: &dyn Display) -> Result<u32, CheckpointError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &dyn Display) -> Result<u64, CheckpointError> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A u64 count of entries of at least `entry_bytes` each.
    pub(super) fn count(&mut self, what: &dyn Display, entry_bytes: u64) -> Result<u64, CheckpointError> {
        let found = self.u64(what)?;
        self.check_room(what, found, entry_bytes)?;
        Ok(found)
    }

    /// Fails if `found` entries of at least `entry_bytes` each cannot fit in what is left.
    pub(super) fn check_room(
        &self,
        what: &dyn Display,
        found: u64,
        entry_bytes: u64,
    ) -> Result<(), CheckpointError> {
        let limit = self.remaining() / entry_bytes;
        if found <= limit {
            return Ok(());
        }
        let at = self.position();
        Err(CheckpointError::Count { what: what.to_string(), at, found, limit })
    }

    pub(super) fn string(&mut self, what: &dyn Display) -> Result<String, CheckpointError> {
        let at = self.position();
        let length = self.u64(what)?;
        let bytes = self.take(length, what)?;
        let text = std::str::from_utf8(bytes)
            .map_err(|_| CheckpointError::NotUtf8 { what: what.to_string(), at })?;
        Ok(text.to_owned())
    }
}
