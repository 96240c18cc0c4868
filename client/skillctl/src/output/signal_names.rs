//! Names of signals, as on x86-64 Linux.

const NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2",
    "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG",
    "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
];

/// Parses a signal's name or number: `TERM`, `SIGTERM`, `term` or `15`.
pub(crate) fn parse_signal(text: &str) -> Result<i32, String> {
    if let Ok(number) = text.parse::<i32>() {
        return if (1..=64).contains(&number) {
            Ok(number)
        } else {
            Err("signals are 1 to 64".to_owned())
        };
    }
    let upper = text.to_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    (1..)
        .zip(NAMES)
        .find(|(_, known)| *known == name)
        .map(|(number, _)| number)
        .ok_or_else(|| "is no signal: write for instance TERM, INT, HUP or a number".to_owned())
}

/// Returns the name of a signal, `SIGTERM`, or `signal 40` for one without a name.
pub(crate) fn signal_name(number: i32) -> String {
    let index = usize::try_from(number - 1).ok();
    match index.and_then(|index| NAMES.get(index)) {
        Some(name) => format!("SIG{name}"),
        None => format!("signal {number}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_known_by_name_and_number() {
        for text in ["TERM", "SIGTERM", "sigterm", "15"] {
            assert_eq!(parse_signal(text), Ok(15));
        }
        for (number, known) in [
            (1, "SIGHUP"),
            (9, "SIGKILL"),
            (31, "SIGSYS"),
            (40, "signal 40"),
        ] {
            assert_eq!(signal_name(number), known);
        }
        for text in ["0", "65", "-9", "NOPE"] {
            assert!(parse_signal(text).is_err(), "{text}");
        }
    }
}
