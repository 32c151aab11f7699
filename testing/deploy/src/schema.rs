//! Validates values against the chart's schema: the keywords of JSON Schema (draft 7) that it uses.

use regex::Regex;
use serde_json::Value;

/// Checks a value.
///
/// # Errors
/// Names the first value that the schema refuses.
///
/// # Panics
/// If the schema uses a keyword that is not known here.
pub fn validate(schema: &Value, value: &Value) -> Result<(), String> {
    check(schema, value, "values")
}

fn check(schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    for (keyword, wanted) in schema.as_object().expect("a schema is an object") {
        let holds = match keyword.as_str() {
            "$schema" | "title" => true,
            "type" => has_type(value, wanted.as_str().expect("one type")),
            "enum" => wanted.as_array().expect("a list").contains(value),
            "const" => wanted == value,
            "not" => check(wanted, value, at).is_err(),
            "anyOf" => {
                wanted.as_array().expect("a list").iter().any(|one| check(one, value, at).is_ok())
            }
            "minimum" => value.as_i64().is_none_or(|number| number >= whole(wanted)),
            "maximum" => value.as_i64().is_none_or(|number| number <= whole(wanted)),
            "minLength" => value.as_str().is_none_or(|text| text.len() as i64 >= whole(wanted)),
            "minItems" => value.as_array().is_none_or(|items| items.len() as i64 >= whole(wanted)),
            "pattern" => {
                let pattern = Regex::new(wanted.as_str().expect("text")).expect("a pattern");
                value.as_str().is_none_or(|text| pattern.is_match(text))
            }
            "required" => {
                let names = wanted.as_array().expect("a list").iter().filter_map(Value::as_str);
                let mut names = names;
                names.all(|name| value.get(name).is_some())
            }
            "items" => {
                for (n, item) in value.as_array().into_iter().flatten().enumerate() {
                    check(wanted, item, &format!("{at}[{n}]"))?;
                }
                true
            }
            "properties" => {
                for (name, schema) in wanted.as_object().expect("an object") {
                    if let Some(value) = value.get(name) {
                        check(schema, value, &format!("{at}.{name}"))?;
                    }
                }
                true
            }
            "additionalProperties" => {
                let known = schema["properties"].as_object();
                let fields = value.as_object().into_iter().flatten();
                for (name, value) in
                    fields.filter(|(name, _)| known.is_none_or(|it| !it.contains_key(*name)))
                {
                    match wanted {
                        Value::Bool(false) => return Err(format!("{at}.{name}: is not known")),
                        schema => check(schema, value, &format!("{at}.{name}"))?,
                    }
                }
                true
            }
            other => panic!("{at}: the keyword {other} is not known to this check"),
        };
        if !holds {
            return Err(format!("{at}: {value} is refused by {keyword} {wanted}"));
        }
    }
    Ok(())
}

fn has_type(value: &Value, wanted: &str) -> bool {
    match wanted {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64(),
        "boolean" => value.is_boolean(),
        other => panic!("type {other} is not known to this check"),
    }
}

fn whole(number: &Value) -> i64 {
    number.as_i64().expect("a whole number")
}
