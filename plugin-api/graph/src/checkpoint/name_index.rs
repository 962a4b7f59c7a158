//! Lookup by name over a list that keeps its own order, without a second copy of the names.

/// The positions of a list in the order of its names. All names are distinct.
#[derive(Clone, Debug, Default)]
pub(super) struct NameIndex {
    sorted: Vec<u32>,
}

impl NameIndex {
    /// Indexes `list`; `Err` holds the positions of two entries with one name, the earlier one first.
    pub(super) fn build<T>(list: &[T], name: impl Fn(&T) -> &str) -> Result<Self, (usize, usize)> {
        let mut sorted: Vec<u32> = (0..list.len() as u32).collect();
        sorted.sort_by(|&a, &b| name(&list[a as usize]).cmp(name(&list[b as usize])));
        for pair in sorted.windows(2) {
            let (a, b) = (pair[0] as usize, pair[1] as usize);
            if name(&list[a]) == name(&list[b]) {
                return Err((a, b));
            }
        }
        Ok(Self { sorted })
    }

    /// Position of `wanted` in the list that was indexed.
    pub(super) fn find<T>(&self, list: &[T], name: impl Fn(&T) -> &str, wanted: &str) -> Option<usize> {
        let at = self.sorted.binary_search_by(|&i| name(&list[i as usize]).cmp(wanted)).ok()?;
        Some(self.sorted[at] as usize)
    }

    /// Positions whose names start with `prefix`, in the order of the names.
    pub(super) fn with_prefix<'a, T>(
        &'a self,
        list: &'a [T],
        name: impl Fn(&T) -> &str + Copy + 'a,
        prefix: &'a str,
    ) -> impl Iterator<Item = usize> + 'a {
        let start = self.sorted.partition_point(|&i| name(&list[i as usize]) < prefix);
        let rest = self.sorted[start..].iter().map(|&i| i as usize);
        rest.take_while(move |&i| name(&list[i]).starts_with(prefix))
    }
}
