//! What the descriptors say about each method: whether it streams. Timeouts and the end of the server differ.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use http::HeaderMap;
use prost::Message;
use prost_types::FileDescriptorSet;
use skilld_proto::v1::FILE_DESCRIPTOR_SET;

use super::connections::CallKind;

/// How a method streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Method {
    pub(super) client_streams: bool,
    pub(super) server_streams: bool,
    /// Of skilld, and not of health or reflection: a drain waits for it.
    pub(super) own: bool,
    /// Clients take it up again where it was: a drain does not wait for it.
    pub(super) resumable: bool,
    /// Its first message says that something was started.
    pub(super) starts: bool,
}

impl Method {
    /// Returns how far a call of this method protects its connection.
    pub(super) fn kind(self) -> CallKind {
        if self.own {
            CallKind::Work
        } else {
            CallKind::Watch
        }
    }
}

/// What waits for an exec's output, or for who types its input, for hours if need be. A client that is told UNAVAILABLE
/// asks again, with offsets.
const RESUMABLE: [&str; 4] = [
    "/skilld.v1.ExecService/AttachExec",
    "/skilld.v1.ExecService/PollExec",
    "/skilld.v1.ExecService/RunExec",
    "/skilld.v1.ExecService/StreamStdin",
];

/// What has started something by the time that its first message comes.
const STARTS: &str = "/skilld.v1.ExecService/RunExec";

/// All methods that are served.
#[derive(Debug)]
pub(super) struct Methods {
    by_path: HashMap<String, Method>,
    /// Full names of skilld's services, sorted.
    pub(super) services: BTreeSet<String>,
}

impl Methods {
    /// Reads the embedded descriptors.
    pub(super) fn new() -> Self {
        let mut methods = Self {
            by_path: HashMap::new(),
            services: BTreeSet::new(),
        };
        for (encoded, own) in [
            (FILE_DESCRIPTOR_SET, true),
            (tonic_health::pb::FILE_DESCRIPTOR_SET, false),
            (tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET, false),
            (tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET, false),
        ] {
            // Made by our own build: a test decodes them.
            methods.add(&FileDescriptorSet::decode(encoded).unwrap_or_default(), own);
        }
        methods
    }

    fn add(&mut self, set: &FileDescriptorSet, own: bool) {
        for file in &set.file {
            for service in &file.service {
                let name = format!("{}.{}", file.package(), service.name());
                for method in &service.method {
                    let path = format!("/{name}/{}", method.name());
                    let method = Method {
                        client_streams: method.client_streaming(),
                        server_streams: method.server_streaming(),
                        own,
                        resumable: RESUMABLE.contains(&path.as_str()),
                        starts: path == STARTS,
                    };
                    self.by_path.insert(path, method);
                }
                if own {
                    self.services.insert(name);
                }
            }
        }
    }

    /// The method at a path, with its path as we know it: nothing a client wrote gets any further.
    pub(super) fn get(&self, path: &str) -> Option<(&str, Method)> {
        self.by_path
            .get_key_value(path)
            .map(|(path, method)| (path.as_str(), *method))
    }
}

/// The client's deadline, as gRPC writes it: up to eight digits and a unit. Nonsense counts as none.
pub(super) fn grpc_timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(count * 3600)),
        "M" => Some(Duration::from_secs(count * 60)),
        "S" => Some(Duration::from_secs(count)),
        "m" => Some(Duration::from_millis(count)),
        "u" => Some(Duration::from_micros(count)),
        "n" => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_say_what_streams() {
        let methods = Methods::new();
        let find = |path: &str| {
            let (_, method) = methods.get(path).expect("known");
            (method.client_streams, method.server_streams, method.own)
        };
        assert_eq!(find("/skilld.v1.ExecService/RunExec"), (false, true, true));
        assert_eq!(
            find("/skilld.v1.FileService/StageFiles"),
            (true, false, true)
        );
        assert_eq!(
            find("/skilld.v1.ServerService/GetServerInfo"),
            (false, false, true)
        );
        assert_eq!(find("/grpc.health.v1.Health/Watch"), (false, true, false));
        assert_eq!(
            find("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"),
            (true, true, false)
        );
        assert!(methods.get("/skilld.v1.ExecService/Nothing").is_none());
        assert_eq!(methods.services.len(), 7);
        assert!(methods.get(STARTS).expect("known").1.starts);
        for path in RESUMABLE {
            assert!(methods.get(path).expect("known").1.resumable);
        }
        let resumable = methods.by_path.values().filter(|method| method.resumable);
        assert_eq!(resumable.count(), RESUMABLE.len());
    }

    #[test]
    fn deadlines_are_read_as_grpc_writes_them() {
        let read = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-timeout", text.parse().expect("header"));
            grpc_timeout(&headers)
        };
        assert_eq!(read("1H"), Some(Duration::from_secs(3600)));
        assert_eq!(read("2M"), Some(Duration::from_secs(120)));
        assert_eq!(read("3S"), Some(Duration::from_secs(3)));
        assert_eq!(read("500m"), Some(Duration::from_millis(500)));
        assert_eq!(read("7u"), Some(Duration::from_micros(7)));
        assert_eq!(read("99999999n"), Some(Duration::from_nanos(99_999_999)));
        for nonsense in ["", "S", "1", "1x", "-1S", "+1S", "123456789S", "1.5S"] {
            assert_eq!(read(nonsense), None, "{nonsense}");
        }
    }
}
