//! JSON Schema of the files that commands read, for editors.

use serde_json::{Value, json};

use crate::probe::{Expected, Protocol};

/// The dialect of the schemas.
const DIALECT: &str = "http://json-schema.org/draft-07/schema#";

/// Files of cases, as `podgate policy test` reads them.
pub fn cases() -> Value {
    let expect: Vec<&str> = Expected::ALL.iter().map(|it| it.name()).collect();
    let case = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "from": end("The ends that open connections"),
            "to": end("The ends that they are opened to"),
            "protocol": protocol(),
            "port": port(false),
            "expect": {"enum": expect},
        },
        "required": ["from", "to", "expect"],
        "additionalProperties": false,
    });
    let everything_else = json!({"enum": ["deny"]});
    let item = json!({"anyOf": [
        case,
        // What `prove` takes is a case, too.
        statement(),
        {"type": "object", "properties": {"everything-else": everything_else},
            "required": ["everything-else"], "additionalProperties": false},
    ]});
    let list = json!({"type": "array", "items": item});
    json!({"$schema": DIALECT, "title": "Cases of podgate policy test", "anyOf": [
        list,
        {"type": "object", "properties": {"cases": list, "everything-else": everything_else},
            "additionalProperties": false},
    ]})
}

/// Files of statements, as `podgate policy prove` reads them.
pub fn statements() -> Value {
    json!({"$schema": DIALECT, "title": "Statements of podgate policy prove",
        "type": "array", "items": statement()})
}

fn statement() -> Value {
    let except = json!({"type": "object",
        "properties": {"protocol": protocol(), "port": port(true)}, "additionalProperties": false});
    let ends = json!({"anyOf": [end("The only end that may open connections"),
        {"type": "array", "items": {"type": "string", "minLength": 1}}]});
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "from": end("The ends that open connections"),
            "only": ends,
            "to": end("The ends that they are opened to"),
            "protocol": protocol(),
            "port": port(true),
            "except": {"type": "array", "items": except},
            "hops": {"enum": [1, 2]},
            "expect": {"enum": ["allow", "deny", "default-deny"]},
        },
        "additionalProperties": false,
    })
}

/// The configuration of `podgate run`.
pub fn config() -> Value {
    // The chart's schema has it; a test holds that to the options.
    let chart = include_str!("../../../deploy/chart/podgate/values.schema.json");
    let chart: Value = serde_json::from_str(chart).unwrap_or_default();
    let mut schema = chart["properties"]["config"].clone();
    schema["$schema"] = DIALECT.into();
    schema["title"] = "Configuration of podgate run".into();
    schema
}

fn end(what: &str) -> Value {
    json!({"type": "string", "minLength": 1, "description": format!(
        "{what}: NS/POD, an IP address, node/NAME, service/NS/NAME, NS/LABEL=VALUE, internet, any-pod, …"
    )})
}

fn protocol() -> Value {
    json!({"enum": Protocol::ALL.map(Protocol::name)})
}

/// A port by number or by name; `"*"` is every port where `with_every` is set.
fn port(with_every: bool) -> Value {
    let mut forms = vec![
        json!({"type": "integer", "minimum": 1, "maximum": 65_535}),
        json!({"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", "maxLength": 63}),
    ];
    forms.extend(with_every.then(|| json!({"enum": ["*"]})));
    json!({"anyOf": forms})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::prove;
    use crate::policy::suite::Suite;

    /// What a schema of an object lists is what the reader takes.
    fn holds(
        properties: &Value,
        required: &[&str],
        usual: &Value,
        read: impl Fn(&Value) -> Result<(), Vec<String>>,
    ) {
        read(usual).unwrap();
        let reads = |field: &str, value: &Value| {
            let mut other = usual.clone();
            other[field] = value.clone();
            read(&other)
        };
        for (field, schema) in properties.as_object().unwrap() {
            let faults = reads(field, &json!({})).err().unwrap_or_default();
            assert!(!faults.iter().any(|it| it.contains("unknown field")), "{field}: {faults:?}");
            for value in schema["enum"].as_array().into_iter().flatten() {
                let faults = reads(field, value).err().unwrap_or_default();
                // Some values go with other fields.
                let is_refused =
                    faults.iter().any(|it| it.contains("none of") || it.contains("neither"));
                assert!(!is_refused, "{field}: {value}: {faults:?}");
            }
        }
        assert!(reads("other", &json!(1)).is_err());
        for field in required {
            let mut other = usual.clone();
            other.as_object_mut().unwrap().remove(*field);
            assert!(read(&other).is_err(), "{field} is required");
        }
    }

    #[test]
    fn the_schema_of_cases_is_what_is_read() {
        let schema = cases();
        let case = &schema["anyOf"][0]["items"]["anyOf"][0];
        let usual = json!({"from": "a/b", "to": "a/c", "port": 80, "expect": "deny"});
        let read = |it: &Value| Suite::read(json!([it]).to_string().as_bytes()).map(drop);
        holds(&case["properties"], &["from", "to", "expect"], &usual, read);
        let whole = json!({"cases": [usual], "everything-else": "deny"});
        Suite::read(whole.to_string().as_bytes()).unwrap();
    }

    #[test]
    fn the_schema_of_statements_is_what_is_read() {
        let usual = json!({"from": "a/b", "to": "a/c", "port": 80, "expect": "deny"});
        let read = |it: &Value| prove::read(json!([it]).to_string().as_bytes()).map(drop);
        holds(&statements()["items"]["properties"], &["to", "expect"], &usual, read);
    }

    #[test]
    fn the_schema_of_the_configuration_has_options() {
        let schema = config();
        assert_eq!(schema["additionalProperties"], false);
        assert!(schema["properties"]["aggregate"].is_object(), "{schema}");
    }
}
