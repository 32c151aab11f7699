//! Kubernetes objects as YAML documents, for tests that start from manifests.

/// A pod; `rest` goes on inside its top level.
pub fn pod(name: &str, labels: &str, node: &str, addresses: &str, rest: &str) -> String {
    let (namespace, name) = name.split_once('/').unwrap();
    let ips: String = addresses.split_whitespace().map(|ip| format!("{{ip: '{ip}'}}, ")).collect();
    let node = if node.is_empty() { String::new() } else { format!("nodeName: {node}, ") };
    format!(
        "---\napiVersion: v1\nkind: Pod\n\
         metadata: {{name: {name}, namespace: {namespace}, labels: {{{labels}}}}}\n\
         spec: {{{node}{rest}}}\nstatus: {{podIPs: [{ips}]}}\n"
    )
}

/// A Node with one internal address; `networks` are its pod CIDRs, separated by commas.
pub fn node(name: &str, address: &str, networks: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Node\nmetadata: {{name: {name}}}\n\
         spec: {{podCIDRs: [{networks}]}}\n\
         status: {{addresses: [{{type: InternalIP, address: '{address}'}}]}}\n"
    )
}

/// A NetworkPolicy of namespace `a`.
pub fn policy(name: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n\
         metadata: {{name: {name}, namespace: a}}\nspec: {{{spec}}}\n"
    )
}
