//! Renders the Helm chart without Helm, for the tests of this folder.
//!
//! Templates are Go's, by the crate gtmpl. Of Helm's own functions the chart uses those in
//! [`render`], and no `include`; its objects are `.Values`, `.Release.Namespace` and
//! `.Chart.AppVersion`. A template that uses anything else fails here.

pub mod schema;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use gtmpl::{FuncError, Template, Value as Tmpl};
use serde_json::Value;

/// The folder with the chart and the kustomizations.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

/// The documents of a YAML file.
///
/// # Panics
/// If it cannot be read; names the file.
pub fn documents(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    parse(&text, &path.display().to_string())
}

/// The chart's default values.
pub fn values() -> Value {
    documents(&folder().join("chart/podgate/values.yaml")).remove(0)
}

/// The objects that the chart makes of these values in this namespace.
///
/// # Panics
/// If a template cannot be parsed or executed, or makes no YAML; names the file.
pub fn render(values: &Value, namespace: &str) -> Vec<Value> {
    let chart = folder().join("chart/podgate");
    let version = documents(&chart.join("Chart.yaml")).remove(0)["appVersion"].clone();
    let context = object([
        ("Values", convert(values)),
        ("Release", object([("Namespace", Tmpl::from(namespace))])),
        ("Chart", object([("AppVersion", convert(&version))])),
    ]);
    let mut objects = Vec::new();
    let mut files: Vec<PathBuf> = std::fs::read_dir(chart.join("templates"))
        .expect("the chart has templates")
        .map(|entry| entry.expect("the folder can be read").path())
        .filter(|path| path.extension().is_some_and(|it| it == "yaml"))
        .collect();
    files.sort_unstable();
    for path in files {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut template = Template::default();
        template.add_func("toYaml", to_yaml);
        template.add_func("toPrettyJson", to_json);
        template.add_func("nindent", nindent);
        template.add_func("quote", quote);
        template.add_func("default", default);
        template.add_func("omit", omit);
        template.parse(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let rendered = template.render(&gtmpl::Context::from(context.clone()));
        let rendered = rendered.unwrap_or_else(|error| panic!("{name}: {error}"));
        objects.extend(parse(&rendered, &name));
    }
    objects
}

fn parse(text: &str, name: &str) -> Vec<Value> {
    let parts = text.split("\n---\n").filter(|part| {
        part.lines().any(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#'))
    });
    parts
        .map(|part| {
            serde_saphyr::from_str(part).unwrap_or_else(|error| panic!("{name}: {error}\n{part}"))
        })
        .collect()
}

/// A line for each field or item, whose content is JSON, which is YAML too.
fn to_yaml(arguments: &[Tmpl]) -> Result<Tmpl, FuncError> {
    let text = match json(one(arguments)?) {
        Value::Object(fields) if !fields.is_empty() => {
            fields.iter().map(|(name, it)| format!("{name}: {it}")).collect::<Vec<_>>().join("\n")
        }
        Value::Array(items) if !items.is_empty() => {
            items.iter().map(|it| format!("- {it}")).collect::<Vec<_>>().join("\n")
        }
        other => other.to_string(),
    };
    Ok(Tmpl::from(text))
}

fn to_json(arguments: &[Tmpl]) -> Result<Tmpl, FuncError> {
    Ok(Tmpl::from(json(one(arguments)?).to_string()))
}

fn nindent(arguments: &[Tmpl]) -> Result<Tmpl, FuncError> {
    let [width, text] = arguments else {
        return Err(FuncError::ExactlyXArgs("nindent".into(), 2));
    };
    let width = json(width).as_u64().unwrap_or(0) as usize;
    let indent = " ".repeat(width);
    let text = json(text).as_str().unwrap_or_default().replace('\n', &format!("\n{indent}"));
    Ok(Tmpl::from(format!("\n{indent}{text}")))
}

fn quote(arguments: &[Tmpl]) -> Result<Tmpl, FuncError> {
    let text = match json(one(arguments)?) {
        Value::String(text) => text,
        other => other.to_string(),
    };
    Ok(Tmpl::from(Value::String(text).to_string()))
}

fn default(arguments: &[Tmpl]) -> Result<Tmpl, FuncError> {
    match arguments {
        [otherwise, given] if json(given) == "" => Ok(otherwise.clone()),
        [_, given] => Ok(given.clone()),
        _ => Err(FuncError::ExactlyXArgs("default".into(), 2)),
    }
}

fn omit(arguments: &[Tmpl]) -> Result<Tmpl, FuncError> {
    let [Tmpl::Object(fields) | Tmpl::Map(fields), names @ ..] = arguments else {
        return Err(FuncError::Generic("omit takes an object and names".into()));
    };
    let mut fields = fields.clone();
    for name in names {
        fields.remove(json(name).as_str().unwrap_or_default());
    }
    Ok(Tmpl::Object(fields))
}

fn one(arguments: &[Tmpl]) -> Result<&Tmpl, FuncError> {
    match arguments {
        [one] => Ok(one),
        _ => Err(FuncError::ExactlyXArgs("a function of the chart".into(), 1)),
    }
}

fn object<const N: usize>(fields: [(&str, Tmpl); N]) -> Tmpl {
    let fields = fields.into_iter().map(|(name, value)| (name.to_owned(), value));
    Tmpl::Object(fields.collect::<HashMap<_, _>>())
}

fn convert(value: &Value) -> Tmpl {
    match value {
        Value::Null => Tmpl::Nil,
        Value::Bool(is) => Tmpl::Bool(*is),
        Value::Number(number) => match number.as_i64() {
            Some(whole) => Tmpl::from(whole),
            None => Tmpl::from(number.as_f64().unwrap_or_default()),
        },
        Value::String(text) => Tmpl::from(text.as_str()),
        Value::Array(items) => Tmpl::Array(items.iter().map(convert).collect()),
        Value::Object(fields) => {
            Tmpl::Object(fields.iter().map(|(name, it)| (name.clone(), convert(it))).collect())
        }
    }
}

fn json(value: &Tmpl) -> Value {
    match value {
        Tmpl::Bool(is) => Value::Bool(*is),
        Tmpl::String(text) => Value::String(text.clone()),
        Tmpl::Array(items) => items.iter().map(json).collect(),
        Tmpl::Object(fields) | Tmpl::Map(fields) => {
            fields.iter().map(|(name, it)| (name.clone(), json(it))).collect()
        }
        Tmpl::Number(number) => match number.as_i64() {
            Some(whole) => whole.into(),
            None => number.as_f64().map_or(Value::Null, Value::from),
        },
        _ => Value::Null,
    }
}
