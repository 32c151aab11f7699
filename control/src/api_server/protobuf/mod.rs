//! Protobuf of the API server, without the parts that no policy depends on: they are passed over by their length.
//!
//! The rest has the shape of the same object's JSON (see [`json`]), so that both are read alike.
//! <https://kubernetes.io/docs/reference/using-api/api-concepts/#protobuf-encoding>.

mod pod;
mod schema;
mod wire;

use std::ops::Range;

use serde_json::{Map, Value};

use super::json;
use crate::Kind;
pub(super) use pod::pod_event;
use schema::{Field, Form, Message};
use wire::{Damage, Fields, Result, Wire, text};

/// The prefix of each `runtime.Unknown`.
const MAGIC: &[u8] = b"k8s\0";

/// Whether the API server serves a kind in protobuf.
pub(super) const fn is_served(kind: Kind) -> bool {
    schema::of(kind).is_some()
}

/// Parses a watch event of a kind, with a `Status` in events of the type ERROR.
pub(super) fn watch_event(bytes: &[u8], kind: Kind) -> Result<Value> {
    let (change, place) = parts(bytes)?;
    let mut event = Map::new();
    event.insert("type".to_owned(), change.into());
    if !place.is_empty() {
        event.insert("object".to_owned(), object(bytes, place, kind)?);
    }
    Ok(Value::Object(event))
}

/// The type of a watch event, and the place of its object; both are empty where there is none.
fn parts(bytes: &[u8]) -> Result<(&str, Range<usize>)> {
    let (mut change, mut object) = ("", 0..0);
    let whole = match bytes.starts_with(MAGIC) {
        true => unknown(bytes, MAGIC.len()..bytes.len())?.raw,
        false => 0..bytes.len(),
    };
    let mut fields = Fields::new(bytes, whole);
    while let Some(field) = fields.next()? {
        match field {
            (1, Wire::Bytes(place)) => change = text(bytes, place)?,
            // A RawExtension.
            (2, Wire::Bytes(place)) => {
                let mut fields = Fields::new(bytes, place);
                while let Some(field) = fields.next()? {
                    if let (1, Wire::Bytes(place)) = field {
                        object = place;
                    }
                }
            }
            _ => {}
        }
    }
    Ok((change, object))
}

/// Parses a list of objects of a kind.
pub(super) fn list(bytes: &[u8], kind: Kind) -> Result<Value> {
    let place = unwrapped(bytes, 0..bytes.len())?.raw;
    let (mut list, mut items) = (Map::new(), Vec::new());
    let mut fields = Fields::new(bytes, place);
    while let Some(field) = fields.next()? {
        match field {
            (schema::METADATA_OF_LIST, Wire::Bytes(place)) => {
                list.insert("metadata".to_owned(), message(bytes, place, &schema::LIST_META)?);
            }
            (schema::ITEMS_OF_LIST, Wire::Bytes(place)) => {
                let schema = schema::of(kind).expect("of a kind that is served so");
                items.push(message(bytes, place, schema)?);
            }
            _ => {}
        }
    }
    list.insert("items".to_owned(), Value::Array(items));
    Ok(Value::Object(list))
}

/// Parses the `Status` of a request that failed.
pub(super) fn status(bytes: &[u8]) -> Result<Value> {
    message(bytes, unwrapped(bytes, 0..bytes.len())?.raw, &schema::STATUS)
}

/// An object in a `runtime.Unknown`: of this kind, or a `Status`.
fn object(bytes: &[u8], place: Range<usize>, kind: Kind) -> Result<Value> {
    let at = place.start;
    let Unknown { api_version, kind: name, raw } = unwrapped(bytes, place)?;
    let schema = match (name, schema::of(kind)) {
        ("Status", _) => &schema::STATUS,
        (name, Some(schema)) if name == kind.name() => schema,
        _ => return Err(Damage { at, problem: "an object of another kind" }),
    };
    let mut object = message(bytes, raw, schema)?;
    object["apiVersion"] = api_version.into();
    object["kind"] = name.into();
    Ok(object)
}

/// A `runtime.Unknown`.
struct Unknown<'b> {
    api_version: &'b str,
    kind: &'b str,
    /// The place of its message.
    raw: Range<usize>,
}

/// The `runtime.Unknown` after its magic.
fn unwrapped(bytes: &[u8], place: Range<usize>) -> Result<Unknown<'_>> {
    match bytes[place.clone()].starts_with(MAGIC) {
        true => unknown(bytes, place.start + MAGIC.len()..place.end),
        false => Err(Damage { at: place.start, problem: "an object does not begin as one" }),
    }
}

fn unknown(bytes: &[u8], place: Range<usize>) -> Result<Unknown<'_>> {
    let mut found = Unknown { api_version: "", kind: "", raw: place.end..place.end };
    let mut fields = Fields::new(bytes, place);
    while let Some(field) = fields.next()? {
        match field {
            (1, Wire::Bytes(place)) => {
                let mut fields = Fields::new(bytes, place);
                while let Some(field) = fields.next()? {
                    match field {
                        (1, Wire::Bytes(place)) => found.api_version = text(bytes, place)?,
                        (2, Wire::Bytes(place)) => found.kind = text(bytes, place)?,
                        _ => {}
                    }
                }
            }
            (2, Wire::Bytes(place)) => found.raw = place,
            _ => {}
        }
    }
    Ok(found)
}

fn message(bytes: &[u8], place: Range<usize>, schema: &'static Message) -> Result<Value> {
    let mut object = Map::new();
    let mut fields = Fields::new(bytes, place);
    while let Some((number, wire)) = fields.next()? {
        let at = fields.began;
        match schema.fields.iter().find(|it| it.number == number) {
            Some(Field { name, form: form @ (Form::Map | Form::Annotations), .. }) => {
                let entries = object.entry(*name).or_insert_with(|| Map::new().into());
                let Value::Object(entries) = entries else { continue };
                entry(bytes, wire, at, matches!(form, Form::Annotations), entries)?;
            }
            Some(Field { name, form, repeated: true, .. }) => {
                let value = value(bytes, wire, at, *form)?;
                match object.entry(*name).or_insert_with(|| Value::Array(Vec::new())) {
                    Value::Array(list) => list.push(value),
                    _ => continue,
                }
            }
            Some(Field { name, form, .. }) => {
                let value = value(bytes, wire, at, *form)?;
                // The encoder writes empty texts which JSON leaves out.
                if schema.strict || value != "" {
                    object.insert((*name).to_owned(), value);
                }
            }
            None if schema.strict => drop(object.insert(format!("field {number}"), true.into())),
            None => {}
        }
    }
    Ok(Value::Object(object))
}

fn value(bytes: &[u8], wire: Wire, at: usize, form: Form) -> Result<Value> {
    let place = match (form, wire) {
        (Form::Number, Wire::Varint(number)) => return Ok((number as i64).into()),
        (Form::Flag, Wire::Varint(flag)) => return Ok((flag != 0).into()),
        (Form::Number | Form::Flag, _) | (_, Wire::Varint(_) | Wire::Fixed) => {
            return Err(Damage { at, problem: "a field of another type" });
        }
        (_, Wire::Bytes(place)) => place,
    };
    match form {
        Form::Message(schema) => message(bytes, place, schema),
        Form::Time => time(bytes, place),
        Form::IntOrString => int_or_string(bytes, place),
        _ => Ok(text(bytes, place)?.into()),
    }
}

/// An entry of a map.
fn entry(
    bytes: &[u8],
    wire: Wire,
    at: usize,
    annotates: bool,
    map: &mut Map<String, Value>,
) -> Result<()> {
    let Wire::Bytes(place) = wire else {
        return Err(Damage { at, problem: "a field of another type" });
    };
    let (key, value) = pair(bytes, place)?;
    if !annotates || json::is_read(key) {
        map.insert(key.to_owned(), text(bytes, value)?.into());
    }
    Ok(())
}

/// The key of a map's entry, and the place of its value.
fn pair(bytes: &[u8], place: Range<usize>) -> Result<(&str, Range<usize>)> {
    let (mut key, mut value) = ("", 0..0);
    let mut fields = Fields::new(bytes, place);
    while let Some(field) = fields.next()? {
        match field {
            (1, Wire::Bytes(place)) => key = text(bytes, place)?,
            (2, Wire::Bytes(place)) => value = place,
            _ => {}
        }
    }
    Ok((key, value))
}

/// Seconds since the epoch, as text; null for the zero time.
fn time(bytes: &[u8], place: Range<usize>) -> Result<Value> {
    let time = timestamp(bytes, place)?;
    Ok(time.map_or(Value::Null, |time| time.to_string().into()))
}

/// A time in seconds; `None` for the zero time.
fn timestamp(bytes: &[u8], place: Range<usize>) -> Result<Option<jiff::Timestamp>> {
    let (at, mut seconds) = (place.start, None);
    let mut fields = Fields::new(bytes, place);
    while let Some(field) = fields.next()? {
        if let (1, Wire::Varint(number)) = field {
            seconds = Some(number as i64);
        }
    }
    let time = seconds.map(jiff::Timestamp::from_second).transpose();
    time.map_err(|_| Damage { at, problem: "a time out of range" })
}

fn int_or_string(bytes: &[u8], place: Range<usize>) -> Result<Value> {
    let (mut is_text, mut number, mut string) = (false, 0, "");
    let mut fields = Fields::new(bytes, place);
    while let Some(field) = fields.next()? {
        match field {
            (1, Wire::Varint(form)) => is_text = form != 0,
            (2, Wire::Varint(value)) => number = value as i32,
            (3, Wire::Bytes(place)) => string = text(bytes, place)?,
            _ => {}
        }
    }
    Ok(if is_text { string.into() } else { number.into() })
}

#[cfg(test)]
mod tests;
