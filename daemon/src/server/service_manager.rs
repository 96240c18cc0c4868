//! Reports the daemon's state to systemd, by the protocol of sd_notify(3): one datagram for each change.
//!
//! A service manager that wants these reports sets NOTIFY_SOCKET. No report makes the daemon wait, and none that is lost
//! ends it.

use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use nix::time::{ClockId, clock_gettime};

use crate::config;

/// State of the daemon, as a service manager knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServiceState {
    /// The daemon serves, after its start or a reload.
    Ready,
    /// The daemon loads changed files again after SIGHUP.
    Reloading,
    /// The daemon drains and then ends.
    Stopping,
}

/// Reports a state to the service manager that started this process, if there is one.
pub(super) fn report_state(state: ServiceState) {
    if let Some(socket) = config::notify_socket()
        && let Err(error) = send_report(&socket, &state.report())
    {
        tracing::warn!(%error, ?state, "failed to report the daemon's state to the service manager");
    }
}

fn send_report(socket: &OsString, report: &str) -> io::Result<()> {
    let address = match socket.as_bytes().split_first() {
        // Linux' abstract names begin with a NUL byte, which a variable can't have.
        Some((b'@', name)) => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    let sender = UnixDatagram::unbound()?;
    sender.set_nonblocking(true)?;
    sender.send_to_addr(report.as_bytes(), &address)?;
    Ok(())
}

impl ServiceState {
    /// Returns the text of the datagram.
    fn report(self) -> String {
        match self {
            Self::Ready => "READY=1\nSTATUS=serving".to_owned(),
            // `Type=notify-reload` refuses a report without the time.
            Self::Reloading => match clock_gettime(ClockId::CLOCK_MONOTONIC) {
                Ok(now) => {
                    let micros = now.tv_sec() * 1_000_000 + now.tv_nsec() / 1000;
                    format!("RELOADING=1\nMONOTONIC_USEC={micros}")
                }
                Err(_) => "RELOADING=1".to_owned(),
            },
            Self::Stopping => "STOPPING=1\nSTATUS=draining".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the datagrams that arrive at a socket for three reports.
    fn received(socket: &UnixDatagram, name: &OsString) -> Vec<String> {
        let states = [
            ServiceState::Ready,
            ServiceState::Reloading,
            ServiceState::Stopping,
        ];
        let receive = |state: ServiceState| {
            send_report(name, &state.report()).expect("sent");
            let mut bytes = [0; 256];
            let length = socket.recv(&mut bytes).expect("received");
            String::from_utf8(bytes[..length].to_vec()).expect("UTF-8")
        };
        states.into_iter().map(receive).collect()
    }

    fn check(reports: &[String]) {
        assert_eq!(reports.len(), 3);
        assert_eq!(reports[0], "READY=1\nSTATUS=serving");
        let micros: u64 = reports[1]
            .strip_prefix("RELOADING=1\nMONOTONIC_USEC=")
            .expect("the time")
            .parse()
            .expect("a number");
        assert!(micros > 0);
        assert_eq!(reports[2], "STOPPING=1\nSTATUS=draining");
    }

    #[test]
    fn reports_arrive_at_a_path() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).expect("bound");
        check(&received(&socket, &path.into_os_string()));
    }

    #[test]
    fn reports_arrive_at_an_abstract_name() {
        let name = format!("skilld-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        let socket = UnixDatagram::bind_addr(&address).expect("bound");
        check(&received(&socket, &OsString::from(format!("@{name}"))));
    }

    #[test]
    fn a_report_without_a_reader_is_an_error_and_no_wait() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("notify");
        let missing = send_report(&path.clone().into_os_string(), "READY=1");
        assert_eq!(
            missing.expect_err("refused").kind(),
            io::ErrorKind::NotFound
        );
        let _socket = UnixDatagram::bind(&path).expect("bound");
        let socket_name = path.into_os_string();
        let full = (0..10_000)
            .find_map(|_| send_report(&socket_name, "READY=1").err())
            .expect("the queue has a limit");
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
    }
}
