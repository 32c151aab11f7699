//! Generated objects, of the size that real ones have: with managed fields, volumes, conditions and
//! the images of a node.

use serde_json::{Value, json};

/// A cluster, described by its size.
#[derive(Clone, Copy)]
pub(super) struct Cluster {
    pub(super) nodes: usize,
    pub(super) pods: usize,
}

/// Pods of a namespace, and of a service.
const IN_NAMESPACE: usize = 100;
const IN_SERVICE: usize = 10;
/// Endpoints of a slice, as the API server's controller has it.
const IN_SLICE: usize = 100;
/// One of so many services has no cluster address.
const HEADLESS: usize = 5;

impl Cluster {
    /// Objects of a resource: how many, and those that a selector of the switch leaves out among
    /// them.
    pub(super) fn count(self, plural: &str) -> usize {
        match plural {
            "nodes" => self.nodes,
            // One in eleven is finished.
            "pods" => self.pods + self.pods / 10,
            "namespaces" => self.pods.div_ceil(IN_NAMESPACE),
            "services" | "endpointslices" => self.pods.div_ceil(IN_SERVICE),
            "networkpolicies" => 3 * self.pods.div_ceil(IN_NAMESPACE),
            _ => 0,
        }
    }

    /// Whether a selector of the switch leaves the object out.
    pub(super) fn is_left_out(self, plural: &str, n: usize) -> bool {
        match plural {
            "pods" => n >= self.pods,
            "endpointslices" => n.is_multiple_of(HEADLESS),
            _ => false,
        }
    }

    pub(super) fn object(self, plural: &str, n: usize, version: u64) -> Value {
        let mut object = match plural {
            "nodes" => self.node(n),
            "pods" => self.pod(n, version),
            "namespaces" => namespace(n),
            "services" => service(n),
            "endpointslices" => self.slice(n),
            _ => policy(n),
        };
        let metadata = &mut object["metadata"];
        metadata["resourceVersion"] = version.to_string().into();
        metadata["uid"] = format!("00000000-0000-4000-8000-{n:012x}").into();
        metadata["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
        metadata["managedFields"] = managed_fields();
        object
    }

    fn address(n: usize) -> String {
        format!("10.{}.{}.{}", 64 + (n >> 16), n >> 8 & 255, n & 255)
    }

    fn node(self, n: usize) -> Value {
        let images: Vec<Value> = (0..50)
            .map(|image| {
                json!({"names": [
                        format!("registry.example.com/team-{image}/app@sha256:{:064x}", image * 977),
                        format!("registry.example.com/team-{image}/app:v1.{image}.0")],
                    "sizeBytes": 123_456_789})
            })
            .collect();
        let conditions: Vec<Value> = ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"]
            .map(|kind| {
                json!({"type": kind, "status": "False", "reason": "KubeletHasSufficientMemory",
                "lastHeartbeatTime": "2026-01-01T00:00:00Z",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
                "message": "kubelet has sufficient memory available"})
            })
            .into();
        json!({"kind": "Node", "apiVersion": "v1",
            "metadata": {"name": format!("node-{n:05}"), "labels": {
                "kubernetes.io/hostname": format!("node-{n:05}"), "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64", "topology.kubernetes.io/zone": format!("z{}", n % 3),
                "node.kubernetes.io/instance-type": "m6.4xlarge"}},
            "spec": {"podCIDR": format!("10.{}.{}.0/24", 64 + (n >> 8), n & 255),
                "podCIDRs": [format!("10.{}.{}.0/24", 64 + (n >> 8), n & 255)],
                "providerID": format!("cloud:///zone/i-{n:017x}")},
            "status": {"addresses": [
                    {"type": "InternalIP", "address": format!("172.16.{}.{}", n >> 8, n & 255)},
                    {"type": "Hostname", "address": format!("node-{n:05}")}],
                "capacity": {"cpu": "16", "memory": "65843112Ki", "pods": "110"},
                "allocatable": {"cpu": "15890m", "memory": "61843112Ki", "pods": "110"},
                "conditions": conditions, "images": images,
                "nodeInfo": {"kernelVersion": "6.12.0", "osImage": "Debian GNU/Linux 12",
                    "containerRuntimeVersion": "containerd://2.0.0", "kubeletVersion": "v1.34.0"}}})
    }

    fn pod(self, n: usize, version: u64) -> Value {
        let (service, namespace) = (n / IN_SERVICE, n / IN_NAMESPACE);
        let tier = ["web", "api", "db"][n % 3];
        let phase = if n < self.pods { "Running" } else { "Succeeded" };
        let env: Vec<Value> = (0..12)
            .map(|it| json!({"name": format!("SETTING_{it}"), "value": format!("value of {it}")}))
            .collect();
        let container = |name: &str, ports: Value| {
            json!({"name": name, "image": format!("registry.example.com/team/{name}:v1.2.3"),
            "ports": ports, "env": env, "resources": {
                "limits": {"cpu": "1", "memory": "512Mi"},
                "requests": {"cpu": "100m", "memory": "256Mi"}},
            "volumeMounts": [{"name": "token", "readOnly": true,
                "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}],
            "livenessProbe": {"httpGet": {"path": "/healthz", "port": 8080, "scheme": "HTTP"},
                "periodSeconds": 10, "timeoutSeconds": 1, "failureThreshold": 3},
            "terminationMessagePath": "/dev/termination-log", "imagePullPolicy": "IfNotPresent"})
        };
        let conditions: Vec<Value> = ["Initialized", "Ready", "ContainersReady", "PodScheduled"]
            .map(|kind| {
                json!({"type": kind, "status": "True", "lastProbeTime": null,
                "lastTransitionTime": "2026-01-01T00:00:00Z"})
            })
            .into();
        json!({"kind": "Pod", "apiVersion": "v1",
            "metadata": {"name": format!("app-{service}-{:010x}-{:05x}", n * 7919, n & 0xfffff),
                "generateName": format!("app-{service}-{:010x}-", n * 7919),
                "namespace": format!("ns-{namespace}"),
                "labels": {"app": format!("app-{service}"), "tier": tier,
                    "pod-template-hash": format!("{:010x}", service * 7919)},
                "annotations": {"checksum/config": format!("{version:064x}")},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet",
                    "name": format!("app-{service}-{:010x}", n * 7919), "controller": true,
                    "uid": "6b1c1d9a-0000-4000-8000-000000000000", "blockOwnerDeletion": true}]},
            "spec": {"nodeName": format!("node-{:05}", n % self.nodes.max(1)),
                "serviceAccountName": "default", "restartPolicy": "Always",
                "schedulerName": "default-scheduler", "terminationGracePeriodSeconds": 30,
                "volumes": [{"name": "token", "projected": {"defaultMode": 420, "sources": [
                    {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                    {"configMap": {"name": "kube-root-ca.crt"}}]}}],
                "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists",
                    "effect": "NoExecute", "tolerationSeconds": 300}],
                "containers": [
                    container("app", json!([{"name": "http", "containerPort": 8080}])),
                    container("sidecar", json!([{"name": "metrics", "containerPort": 9090}]))]},
            "status": {"phase": phase, "podIP": Self::address(n),
                "podIPs": [{"ip": Self::address(n)}], "hostIP": "172.16.0.1",
                "qosClass": "Burstable", "conditions": conditions,
                "containerStatuses": [{"name": "app", "ready": true, "restartCount": 0,
                    "image": "registry.example.com/team/app:v1.2.3",
                    "imageID": format!("registry.example.com/team/app@sha256:{:064x}", 977),
                    "containerID": format!("containerd://{:064x}", n * 7919),
                    "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}]}})
    }

    fn slice(self, n: usize) -> Value {
        let endpoints: Vec<Value> = (n * IN_SERVICE..((n + 1) * IN_SERVICE).min(self.pods))
            .take(IN_SLICE)
            .map(|pod| {
                json!({"addresses": [Self::address(pod)],
                "nodeName": format!("node-{:05}", pod % self.nodes.max(1)),
                "conditions": {"ready": true, "serving": true, "terminating": false},
                "targetRef": {"kind": "Pod", "namespace": format!("ns-{}", pod / IN_NAMESPACE),
                    "name": format!("app-{n}-{pod}"),
                    "uid": "6b1c1d9a-0000-4000-8000-000000000000"}})
            })
            .collect();
        let mut labels = json!({"kubernetes.io/service-name": format!("app-{n}"),
            "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"});
        if self.is_left_out("endpointslices", n) {
            labels["service.kubernetes.io/headless"] = "".into();
        }
        json!({"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1",
            "metadata": {"name": format!("app-{n}-abcde"), "labels": labels,
                "namespace": format!("ns-{}", n * IN_SERVICE / IN_NAMESPACE)},
            "addressType": "IPv4", "endpoints": endpoints,
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}]})
    }
}

fn namespace(n: usize) -> Value {
    json!({"kind": "Namespace", "apiVersion": "v1",
        "metadata": {"name": format!("ns-{n}"), "labels": {"team": format!("team-{}", n % 50),
            "kubernetes.io/metadata.name": format!("ns-{n}")}},
        "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}})
}

fn service(n: usize) -> Value {
    let address = match n % HEADLESS {
        0 => "None".to_owned(),
        _ => format!("172.{}.{}.{}", 20 + (n >> 16), n >> 8 & 255, n & 255),
    };
    json!({"kind": "Service", "apiVersion": "v1",
        "metadata": {"name": format!("app-{n}"),
            "namespace": format!("ns-{}", n * IN_SERVICE / IN_NAMESPACE),
            "labels": {"app": format!("app-{n}")}},
        "spec": {"clusterIP": address, "clusterIPs": [address], "type": "ClusterIP",
            "selector": {"app": format!("app-{n}")}, "sessionAffinity": "None",
            "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": "http"}]},
        "status": {"loadBalancer": {}}})
}

/// Three of a namespace: nothing by itself, its own pods, and those of another team.
fn policy(n: usize) -> Value {
    let namespace = n / 3;
    let spec = match n % 3 {
        0 => json!({"podSelector": {}, "policyTypes": ["Ingress"]}),
        1 => json!({"podSelector": {"matchLabels": {"tier": "db"}}, "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"tier": "api"}}}],
                "ports": [{"port": "http"}]}]}),
        _ => json!({"podSelector": {"matchLabels": {"tier": "web"}}, "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"namespaceSelector": {"matchLabels": {
                "team": format!("team-{}", (namespace + 1) % 50)}}}]}]}),
    };
    json!({"kind": "NetworkPolicy", "apiVersion": "networking.k8s.io/v1",
        "metadata": {"name": format!("policy-{}", n % 3), "namespace": format!("ns-{namespace}")},
        "spec": spec})
}

/// The records of server-side apply, the larger part of many objects.
fn managed_fields() -> Value {
    let fields: serde_json::Map<String, Value> = (0..25)
        .map(|n| (format!("f:field{n}"), json!({".": {}, "f:name": {}, "f:value": {}})))
        .collect();
    json!([{"manager": "kube-controller-manager", "operation": "Update", "apiVersion": "v1",
        "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": fields}])
}
