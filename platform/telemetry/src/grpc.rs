//! gRPC over HTTP/2 (grpc/doc/PROTOCOL-HTTP2.md), as far as its servers share it.

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

/// Bytes before each message: whether it is compressed, and its length.
pub const PREFIX: usize = 5;

/// Status codes (grpc/doc/statuscodes.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The call succeeded.
    Ok = 0,
    /// The client cancelled the call.
    Canceled = 1,
    /// A fault without a code of its own.
    Unknown = 2,
    /// The request cannot be used.
    InvalidArgument = 3,
    /// The client lacks permission.
    PermissionDenied = 7,
    /// A limit is reached.
    ResourceExhausted = 8,
    /// There is no such method, or it is not supported.
    Unimplemented = 12,
    /// A fault of the server.
    Internal = 13,
    /// Try again later.
    Unavailable = 14,
    /// The client has no valid credentials.
    Unauthenticated = 16,
}

/// Escapes a status message for its header.
pub fn escaped(message: &str) -> String {
    const ESCAPED: &AsciiSet = &CONTROLS.add(b'%');
    utf8_percent_encode(message, ESCAPED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_ascii_and_survive() {
        assert_eq!(escaped("50% of «x»\n"), "50%25 of %C2%ABx%C2%BB%0A");
        for text in ["dial tcp: 100 % lost\n", "plain", "ä%41"] {
            let decoded = percent_encoding::percent_decode_str(&escaped(text))
                .decode_utf8_lossy()
                .into_owned();
            assert_eq!(decoded, text);
        }
    }
}
