//! The static table (RFC 7541, appendix A).

use std::sync::LazyLock;

use super::Field;

/// Entries from index 1 on.
#[rustfmt::skip]
pub(super) const STATIC: [(&str, &str); 61] = [
    (":authority", ""), (":method", "GET"), (":method", "POST"), (":path", "/"),
    (":path", "/index.html"), (":scheme", "http"), (":scheme", "https"), (":status", "200"),
    (":status", "204"), (":status", "206"), (":status", "304"), (":status", "400"),
    (":status", "404"), (":status", "500"), ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"), ("accept-language", ""), ("accept-ranges", ""),
    ("accept", ""), ("access-control-allow-origin", ""), ("age", ""), ("allow", ""),
    ("authorization", ""), ("cache-control", ""), ("content-disposition", ""),
    ("content-encoding", ""), ("content-language", ""), ("content-length", ""),
    ("content-location", ""), ("content-range", ""), ("content-type", ""), ("cookie", ""),
    ("date", ""), ("etag", ""), ("expect", ""), ("expires", ""), ("from", ""), ("host", ""),
    ("if-match", ""), ("if-modified-since", ""), ("if-none-match", ""), ("if-range", ""),
    ("if-unmodified-since", ""), ("last-modified", ""), ("link", ""), ("location", ""),
    ("max-forwards", ""), ("proxy-authenticate", ""), ("proxy-authorization", ""), ("range", ""),
    ("referer", ""), ("refresh", ""), ("retry-after", ""), ("server", ""), ("set-cookie", ""),
    ("strict-transport-security", ""), ("transfer-encoding", ""), ("user-agent", ""),
    ("vary", ""), ("via", ""), ("www-authenticate", ""),
];

/// The entry with this index, from 1 on.
pub(super) fn entry(index: usize) -> Option<&'static Field> {
    static FIELDS: LazyLock<Vec<Field>> = LazyLock::new(|| {
        let field = |(name, value): (&str, &str)| Field { name: name.into(), value: value.into() };
        STATIC.into_iter().map(field).collect()
    });
    FIELDS.get(index.checked_sub(1)?)
}

/// The index of the entry with this name and value.
pub(super) fn exact(name: &str, value: &str) -> Option<usize> {
    STATIC.iter().position(|it| *it == (name, value) && !value.is_empty()).map(|at| at + 1)
}

/// The index of an entry with this name.
pub(super) fn named(name: &str) -> Option<usize> {
    STATIC.iter().position(|it| it.0 == name).map(|at| at + 1)
}
