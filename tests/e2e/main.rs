//! Everything that needs a real daemon on real Docker, one module per suite. `make test` runs each suite by itself. Once
//! `make programs` has built the programs, `cargo test --test e2e security::container::` runs some of the tests.
//!
//! | module | proves |
//! |---|---|
//! | `functional` | what only Docker, the kernel in a container or the installed programs can refuse or break |
//! | `security` | barriers against hostile code in a workspace |
//! | `crash` | that nothing is lost when a process dies |
//! | `load` | bytes, counts and order under load; its tests run one at a time |
//! | `foreign` | clients that are not ours, and the command blocks of the documents |
//! | `compat` | published shapes of skills |

#![expect(
    clippy::panic_in_result_fn,
    clippy::indexing_slicing,
    reason = "an assertion, and a JSON value without the key, are how a test fails"
)]

mod compat;
mod crash;
mod foreign;
mod functional;
mod load;
mod security;
