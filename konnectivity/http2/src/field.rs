//! Checks headers of messages: malformed ones (section 8).

use super::Role;
use super::hpack::Field;

/// Headers that belong to one connection of HTTP/1.1 (section 8.2.2).
const OF_CONNECTIONS: [&str; 5] =
    ["connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade"];

/// Checks the headers that open a message. `role` is ours: a server gets requests.
///
/// # Errors
/// Names the malformed header.
pub(crate) fn check_opening(role: Role, fields: &[Field]) -> Result<(), String> {
    let allowed: &[&str] = match role {
        Role::Server => &[":method", ":scheme", ":authority", ":path"],
        Role::Client => &[":status"],
    };
    let mut seen: Vec<&str> = Vec::new();
    let mut regular = false;
    for field in fields {
        if !field.name.starts_with(':') {
            regular = true;
            check_field(field)?;
            continue;
        }
        let name = field.name.as_str();
        if regular {
            return Err(format!("{name} after other headers"));
        }
        if !allowed.contains(&name) {
            return Err(format!("{name} is unknown here"));
        }
        if seen.contains(&name) {
            return Err(format!("{name} twice"));
        }
        check_value(field)?;
        seen.push(name);
    }
    let value = |name| fields.iter().find(|it| it.name == name).map(|it| it.value.as_str());
    match role {
        Role::Client => value(":status").map(|_| ()).ok_or_else(|| ":status is missing".to_owned()),
        Role::Server => {
            // CONNECT has an authority and neither scheme nor path (section 8.5).
            let connect = value(":method") == Some("CONNECT");
            let needed: &[&str] =
                if connect { &[":authority"] } else { &[":method", ":scheme", ":path"] };
            let barred: &[&str] = if connect { &[":scheme", ":path"] } else { &[] };
            if let Some(name) = needed.iter().find(|name| value(name).is_none_or(str::is_empty)) {
                return Err(format!("{name} is missing"));
            }
            match barred.iter().find(|name| value(name).is_some()) {
                Some(name) => Err(format!("CONNECT with {name}")),
                None => Ok(()),
            }
        }
    }
}

/// The content-length of a message, if it has one.
///
/// # Errors
/// Says why it is malformed (RFC 9110, section 8.6).
pub(crate) fn content_length(fields: &[Field]) -> Result<Option<u64>, String> {
    let mut length = None;
    for field in fields.iter().filter(|it| it.name == "content-length") {
        let digits = !field.value.is_empty() && field.value.bytes().all(|it| it.is_ascii_digit());
        let value = field.value.parse().ok().filter(|_| digits);
        match value {
            Some(value) if length.is_none_or(|it| it == value) => length = Some(value),
            _ => return Err(format!("content-length {}", field.value)),
        }
    }
    Ok(length)
}

/// Checks the headers that end a message.
///
/// # Errors
/// Names the malformed header.
pub(crate) fn check_trailers(fields: &[Field]) -> Result<(), String> {
    fields.iter().try_for_each(|field| match field.name.starts_with(':') {
        true => Err(format!("{} in trailers", field.name)),
        false => check_field(field),
    })
}

fn check_field(field: &Field) -> Result<(), String> {
    let name = field.name.as_str();
    let bad = |byte: u8| !byte.is_ascii_graphic() || byte.is_ascii_uppercase() || byte == b':';
    if name.is_empty() || name.bytes().any(bad) {
        return Err(format!("header name '{}'", name.escape_debug()));
    }
    if OF_CONNECTIONS.contains(&name) {
        return Err(format!("header {name} of HTTP/1.1"));
    }
    if name == "te" && field.value != "trailers" {
        return Err("header te with something else than trailers".to_owned());
    }
    check_value(field)
}

/// Section 8.2.1.
fn check_value(field: &Field) -> Result<(), String> {
    let value = field.value.as_bytes();
    let blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    let bad = value.iter().any(|byte| matches!(byte, 0 | b'\r' | b'\n'));
    match bad || blank(value.first()) || blank(value.last()) {
        true => Err(format!("value of header {}", field.name)),
        false => Ok(()),
    }
}
