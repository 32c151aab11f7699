//! Tests of policies, differences and lint, over whole sets of manifests.

mod admission;
mod could_be;
mod diff;
mod drawings;
mod explain;
mod lint;
mod lint_cluster;
mod list;
mod mistakes;
mod picture;
mod proof_property;
mod proofs;
mod representatives;
mod scale;
mod sources;
mod suggest;
mod suite;

use std::fs;

use policy_tools::input::Manifests;
use testkit::TempDir;

/// Manifests out of YAML documents.
fn manifests(text: &str) -> Manifests {
    let folder = TempDir::new("policy");
    let file = folder.path().join("all.yaml");
    fs::write(&file, text).unwrap();
    Manifests::load(&[file]).unwrap_or_else(|faults| panic!("{faults:?}"))
}

fn deployment(namespace: &str, name: &str, rest: &str) -> String {
    format!(
        "---\napiVersion: apps/v1\nkind: Deployment\n\
         metadata: {{name: {name}, namespace: {namespace}}}\n\
         spec:\n  selector: {{matchLabels: {{app: {name}}}}}\n  template:\n    \
         metadata: {{labels: {{app: {name}}}}}\n    spec: {{containers: [{{name: c{rest}}}]}}\n"
    )
}

fn policy(namespace: &str, name: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n\
         metadata: {{name: {name}, namespace: {namespace}}}\nspec: {{{spec}}}\n"
    )
}

/// A shop of three workloads: `frontend` reaches `backend` on 8080, `backend` the database.
fn shop() -> String {
    let from = |app: &str, port: u16| {
        format!(
            "ingress: [{{from: [{{podSelector: {{matchLabels: {{app: {app}}}}}}}], \
             ports: [{{port: {port}}}]}}]"
        )
    };
    let to = |app: &str| format!("podSelector: {{matchLabels: {{app: {app}}}}}, ");
    deployment("shop", "frontend", "")
        + &deployment("shop", "backend", ", ports: [{name: http, containerPort: 8080}]")
        + &deployment("shop", "db", "")
        + "---\napiVersion: v1\nkind: Service\nmetadata: {name: backend, namespace: shop}\n\
           spec: {selector: {app: backend}, ports: [{port: 80, targetPort: http}]}\n"
        + &policy("shop", "backend", &(to("backend") + &from("frontend", 8080)))
        + &policy("shop", "db", &(to("db") + &from("backend", 5432)))
}
