//! Generates `src/messages` of `hubble` from the proto files.

use std::error::Error;
use std::hash::Hasher as _;
use std::path::Path;
use std::process::Command;

const NAMES: [&str; 4] = ["flow", "health", "observer", "peer"];
/// Messages of a flow, which have a JSON form.
const IN_JSON: [&str; 14] = [
    "Flow", "CiliumEventType", "Emitter", "IP", "TCP", "UDP", "SCTP", "ICMPv4", "ICMPv6", "TCPFlags", "Endpoint",
    "Workload", "Service", "Policy",
];
/// Enumerations in them: field, type, type in Rust.
const NAMED: [(&str, &str, &str); 7] = [
    ("Flow.verdict", "Verdict", "Verdict"),
    ("Flow.Type", "FlowType", "FlowType"),
    ("Flow.traffic_direction", "TrafficDirection", "TrafficDirection"),
    ("Flow.trace_observation_point", "TraceObservationPoint", "TraceObservationPoint"),
    ("Flow.drop_reason_desc", "DropReason", "DropReason"),
    ("Flow.trace_reason", "TraceReason", "TraceReason"),
    ("IP.ipVersion", "IPVersion", "IpVersion"),
];
/// Fields and values whose names in Rust are others.
const RENAMED: [(&str, &str); 8] = [
    ("Flow.IP", "IP"),
    ("Flow.Type", "Type"),
    ("Flow.Summary", "Summary"),
    ("IP.ipVersion", "ipVersion"),
    ("IPVersion.IPv4", "IPv4"),
    ("IPVersion.IPv6", "IPv6"),
    ("protocol.ICMPv4", "ICMPv4"),
    ("protocol.ICMPv6", "ICMPv6"),
];

fn main() -> Result<(), Box<dyn Error>> {
    let proto = Path::new(env!("CARGO_MANIFEST_DIR"));
    let messages = proto.join("../src/messages");
    let files = NAMES.map(|name| format!("{name}.proto"));
    let mut config = prost_build::Config::new();
    config
        .out_dir(&messages)
        .compile_well_known_types()
        .disable_comments([".google"])
        .extern_path(".google.protobuf.BoolValue", "bool")
        .extern_path(".google.protobuf.UInt32Value", "u32")
        .boxed(".observer.GetFlowsResponse.response_types.flow");
    for name in IN_JSON {
        config.type_attribute(format!(".flow.{name}"), "#[derive(serde::Serialize)]");
        let skip = "#[serde(skip_serializing_if = \"crate::json::is_default\")]";
        config.field_attribute(format!(".flow.{name}"), skip);
    }
    for (field, name, rust) in NAMED {
        config.field_attribute(field, format!("#[serde(serialize_with = \"crate::json::name::<{rust}, _>\")]"));
        config.type_attribute(format!(".flow.{name}"), "#[derive(serde::Serialize)]");
        config.type_attribute(format!(".flow.{name}"), "#[serde(rename_all = \"SCREAMING_SNAKE_CASE\")]");
    }
    for (field, name) in RENAMED {
        config.field_attribute(field, format!("#[serde(rename = \"{name}\")]"));
    }
    config.field_attribute("Flow.time", "#[serde(serialize_with = \"crate::json::time\")]");
    config.type_attribute("Layer4", "#[derive(serde::Serialize)] #[serde(transparent)]");
    config.type_attribute("protocol", "#[derive(serde::Serialize)] #[serde(rename_all = \"UPPERCASE\")]");
    config.type_attribute("TCPFlags", "#[serde(rename_all = \"UPPERCASE\")]");
    let descriptors = protox::compile(files, [proto])?;
    let flow = descriptors.file.iter().flat_map(|file| &file.message_type).find(|it| it.name() == "Flow");
    let fields: Vec<_> = flow.ok_or("no Flow")?.field.iter().map(|it| it.name().to_owned()).collect();
    config.compile_fds(descriptors)?;
    let path = messages.join("flow.rs");
    std::fs::write(&path, std::fs::read_to_string(&path)? + &masked(&fields))?;
    for name in NAMES {
        let source = std::fs::read(proto.join(format!("{name}.proto")))?;
        let mut hasher = fnv::FnvHasher::default();
        hasher.write(&source);
        let path = messages.join(format!("{name}.rs"));
        let head = format!("// Of {name}.proto, FNV-1a {:016x}.\n", hasher.finish());
        let code = std::fs::read_to_string(&path)?;
        let (first, rest) = code.split_once('\n').ok_or("empty output")?;
        std::fs::write(&path, format!("{first}\n{head}{rest}"))?;
    }
    std::fs::rename(messages.join("google.protobuf.rs"), messages.join("google/protobuf.rs"))?;
    // With the modules below it.
    let all = messages.join("mod.rs");
    let formatted = Command::new("rustfmt").args(["--edition", "2024"]).arg(all).status()?;
    if !formatted.success() {
        return Err("rustfmt failed".into());
    }
    Ok(())
}

/// A method of `Flow` that keeps the fields with wanted names.
fn masked(fields: &[String]) -> String {
    let field = |name: &String| {
        let own = if name == "Type" { "r#type".to_owned() } else { name.to_lowercase() };
        format!("{own}: if wanted({name:?}) {{ self.{own} }} else {{ Default::default() }},")
    };
    format!(
        "impl Flow {{
            /// The flow with those of its fields whose names in the proto file are wanted.
            pub fn masked(self, wanted: impl Fn(&str) -> bool) -> Self {{
                Self {{ {} }}
            }}
        }}",
        fields.iter().map(field).collect::<String>()
    )
}
