//! Variables of the environment, which a client reads only where its caller asks for that.

/// Returns a variable of the environment; `None` if it is unset, blank or not UTF-8.
#[must_use]
#[expect(
    clippy::disallowed_methods,
    reason = "the variables of clients are read here, and only where the caller asks for it"
)]
pub fn environment_variable(name: &str) -> Option<String> {
    let text = std::env::var(name).ok();
    text.filter(|text| !text.trim().is_empty())
}
