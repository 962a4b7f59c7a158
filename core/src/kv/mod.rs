//! Paged KV cache bookkeeping: block pool, prefix hashing.
