//! Parses the detach keys of a terminal session and filters them out of the typed input.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Sequence of keys that detaches from a terminal session; empty if no keys detach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DetachKeys(Vec<u8>);

impl DetachKeys {
    /// Parses a sequence of detach keys, such as `ctrl-p,ctrl-q`, `a,b,c` or `none`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self(Vec::new()));
        }
        let keys: Option<Vec<u8>> = text.split(',').map(parse_key).collect();
        keys.map(Self)
            .ok_or_else(|| "write for instance ctrl-p,ctrl-q or ctrl-], or none".to_owned())
    }

    /// Copies typed keys until the detach keys are typed, and returns `true` then; `false` if the source ended. Holds
    /// back a possible beginning of the detach keys until the next key.
    pub(crate) async fn copy_others(
        &self,
        mut source: impl AsyncRead + Unpin,
        mut target: impl AsyncWrite + Unpin,
    ) -> bool {
        let (mut held, mut buffer) = (Vec::new(), [0; 4096]);
        loop {
            // A keyboard that cannot be read is gone like one that ended.
            let count = source.read(&mut buffer).await.unwrap_or_default();
            let mut others = Vec::new();
            let detaches = buffer.iter().take(count).any(|key| {
                held.push(*key);
                while !self.0.starts_with(&held) {
                    others.push(held.remove(0));
                }
                !held.is_empty() && held == self.0
            });
            if count == 0 {
                others.append(&mut held);
            }
            // Without a reader of the keys the user can still detach.
            drop(target.write_all(&others).await);
            if detaches || count == 0 {
                return detaches;
            }
        }
    }
}

fn parse_key(text: &str) -> Option<u8> {
    match text.as_bytes() {
        [key] if key.is_ascii_graphic() => Some(*key),
        // Terminals send `@`, the letters and `[\]^_` with Ctrl as the bytes 0 to 31.
        [prefix @ .., key] if prefix == b"ctrl-" => {
            let upper = key.to_ascii_uppercase();
            (b'@'..=b'_').contains(&upper).then_some(upper & 0x1f)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use tokio::io::ReadBuf;

    use super::*;

    #[test]
    fn detach_keys_are_written_as_docker_has_them() {
        let keys = |text| DetachKeys::parse(text).map(|keys| keys.0);
        assert_eq!(keys("ctrl-p,ctrl-q"), Ok(vec![16, 17]));
        assert_eq!(keys("ctrl-],x,~"), Ok(vec![29, b'x', b'~']));
        assert_eq!(keys("ctrl-@,ctrl-A"), Ok(vec![0, 1]));
        assert_eq!(keys("none"), Ok(vec![]));
        for wrong in ["", "ctrl-", "ctrl-1", "ctrl-pq", "ab", "a,,b", "é"] {
            keys(wrong).expect_err(wrong);
        }
    }

    /// Returns the keys that are passed on, and `true` if the detach keys were typed.
    async fn typed(detach: &str, pieces: &[&[u8]]) -> (Vec<u8>, bool) {
        let source = KeyPieces(pieces.iter().rev().map(|piece| piece.to_vec()).collect());
        let keys = DetachKeys::parse(detach).expect("are keys");
        let mut through = Vec::new();
        let detaches = keys.copy_others(source, &mut through).await;
        (through, detaches)
    }

    /// A source that gives one piece at a time.
    struct KeyPieces(Vec<Vec<u8>>);

    impl AsyncRead for KeyPieces {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<std::io::Result<()>> {
            if let Some(piece) = self.0.pop() {
                buffer.put_slice(&piece);
            }
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn all_keys_but_those_that_leave_come_through() {
        let usual = "ctrl-p,ctrl-q";
        for (detach, pieces, through, left) in [
            (usual, vec![&b"ls\r"[..]], &b"ls\r"[..], false),
            (usual, vec![b"ls\r\x10\x11more"], b"ls\r", true),
            (usual, vec![b"a\x10", b"\x11b"], b"a", true),
            (usual, vec![b"\x10", b"x"], b"\x10x", false),
            (usual, vec![b"\x10\x10", b"\x11"], b"\x10", true),
            (usual, vec![b"\x11\x10"], b"\x11\x10", false),
            ("a,a,b", vec![b"aaab"], b"a", true),
            ("a,b,a,c", vec![b"ababac"], b"ab", true),
            ("none", vec![b"\x10\x11"], b"\x10\x11", false),
        ] {
            let got = typed(detach, &pieces).await;
            assert_eq!(got, (through.to_vec(), left), "{detach} {pieces:?}");
        }
    }
}
