//! Entries in `tests/bench/results/` and the tables of docs/benchmarks.md, which the benchmarks and the token report share.

pub mod results;
