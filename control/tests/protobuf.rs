//! An object says the same in JSON and in protobuf.

use std::path::Path;

use control::api_server::{Access, Event, Pace, connect, parse_watch, parse_watch_protobuf, watch};
use control::{Kind, Object};
use proptest::prelude::*;
use proptest::{collection::vec, option, sample::select};
use serde_json::{Value, json};
use testkit::protobuf;
use tokio::sync::mpsc;

use crate::common::generate::{Edit, edits};
use crate::double::{Double, Step, event, node};

/// A service with anything that is read of one.
fn service() -> impl Strategy<Value = Value> {
    let port = (1..9_i32, option::of(select(&["http", "7"])), option::of(0..3_i32)).prop_map(
        |(number, name, node_port)| {
            let mut port = json!({"name": format!("p{number}"), "port": number});
            if let Some(name) = name {
                port["targetPort"] = name.parse::<i32>().map_or(json!(name), Value::from);
            }
            if let Some(node_port) = node_port {
                port["nodePort"] = (30_000 * node_port.min(1) + node_port).into();
            }
            port
        },
    );
    let kinds = select(&["ClusterIP", "LoadBalancer", "ExternalName", ""]);
    let policy = || select(&["", "Local", "Cluster", "Nearby"]);
    let address = select(&["10.96.0.1", "None", "", "fd00::1", "nowhere"]);
    let range = option::of(select(&["192.0.2.0/24", "nowhere"]));
    let rest = (policy(), policy(), option::of(0..99_u32), range, 0..2_i32, any::<bool>());
    (kinds, address, vec(port, 0..3), rest).prop_map(
        |(kind, address, ports, (external, internal, timeout, range, check, others))| {
            let mut service = json!({"apiVersion": "v1", "kind": "Service",
                "metadata": {"name": "s", "namespace": "n", "uid": "u", "labels": {"a": ""}},
                "spec": {"type": kind, "clusterIP": address, "clusterIPs": [address],
                    "ports": ports, "externalTrafficPolicy": external, "externalIPs": ["192.0.2.9"],
                    "internalTrafficPolicy": internal, "healthCheckNodePort": 30_000 * check},
                "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1", "ipMode": "VIP"},
                    {"ip": "192.0.2.2", "ipMode": "Proxy"}, {"hostname": "lb.example"}]}}});
            if let Some(timeout) = timeout {
                service["spec"]["sessionAffinity"] = "ClientIP".into();
                service["spec"]["sessionAffinityConfig"] =
                    json!({"clientIP": {"timeoutSeconds": timeout}});
            }
            if let Some(range) = range {
                service["spec"]["loadBalancerSourceRanges"] = json!([range]);
            }
            if others {
                service["metadata"]["labels"]["service.kubernetes.io/headless"] = "".into();
            }
            service
        },
    )
}

fn slice() -> impl Strategy<Value = Value> {
    let flag = || option::of(any::<bool>());
    let endpoint = (flag(), flag(), flag(), option::of(select(&["n1", "n2"])), any::<bool>())
        .prop_map(|(ready, serving, terminating, node, hinted)| {
            let mut endpoint = json!({"addresses": ["10.0.0.1"], "conditions": {}, "zone": "z"});
            let flags = [("ready", ready), ("serving", serving), ("terminating", terminating)];
            for (name, flag) in flags.into_iter().filter_map(|(name, it)| Some((name, it?))) {
                endpoint["conditions"][name] = flag.into();
            }
            if let Some(node) = node {
                endpoint["nodeName"] = node.into();
            }
            if hinted {
                endpoint["hints"] =
                    json!({"forZones": [{"name": "z"}], "forNodes": [{"name": "n"}]});
            }
            endpoint
        });
    let port = (option::of(select(&["UDP", "TCP", "ICMP"])), option::of(-1..99_i32)).prop_map(
        |(protocol, number)| {
            let mut port = json!({});
            if let Some(protocol) = protocol {
                port["protocol"] = protocol.into();
            }
            if let Some(number) = number {
                port["port"] = number.into();
            }
            port
        },
    );
    let kind = select(&["IPv4", "FQDN"]);
    (kind, vec(endpoint, 0..4), vec(port, 0..3)).prop_map(|(kind, endpoints, ports)| {
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": kind,
            "metadata": {"name": "s-1", "namespace": "n",
                "labels": {"kubernetes.io/service-name": "s"}},
            "endpoints": endpoints, "ports": ports})
    })
}

/// Fields of most objects that decide nothing, and annotations that do.
fn decorated(mut object: Value, version: u32, finished: bool) -> Value {
    let metadata = &mut object["metadata"];
    metadata["uid"] = format!("uid-{version}").into();
    metadata["resourceVersion"] = version.to_string().into();
    metadata["creationTimestamp"] = format!("2026-01-01T00:00:{:02}Z", version % 60).into();
    metadata["annotations"] = json!({"podgate.io/stage": "staged", "other": "x",
        "kubernetes.io/config.hash": "h", "kubernetes.io/config.mirror": "h", "podgate.io/denied-reply": "reject"});
    metadata["managedFields"] = json!([{"manager": "kubelet", "operation": "Update",
        "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {}}}]);
    metadata["ownerReferences"] = json!([{"kind": "ReplicaSet", "name": "r", "uid": "u",
        "apiVersion": "apps/v1", "controller": true}]);
    if object["kind"] == "Pod" {
        let container = &mut object["spec"]["containers"][0];
        container["env"] = json!([{"name": "A", "value": "b"}]);
        container["livenessProbe"] = json!({"httpGet": {"path": "/", "port": "http"}});
        container["resources"] = json!({"limits": {"cpu": "1"}});
        let ports = json!([{"name": "side", "containerPort": 9, "hostPort": 9, "hostIP": "::1"}]);
        object["spec"]["initContainers"] =
            json!([{"name": "s", "restartPolicy": "Always", "ports": ports}, {"name": "once"}]);
        object["spec"]["volumes"] = json!([{"name": "v", "hostPath": {"path": "/"}}]);
        object["status"]["conditions"] = json!([{"type": "Ready", "status": "True"}]);
        object["status"]["podIP"] = "10.9.9.9".into();
        if finished {
            object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        }
    }
    if object["kind"] == "Node" {
        object["spec"] = json!({"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24", "x"],
            "taints": [{"key": "k", "effect": "NoSchedule"}]});
        object["status"]["capacity"] = json!({"cpu": "4"});
        object["status"]["images"] = json!([{"names": ["i"], "sizeBytes": 7}]);
    }
    object
}

fn object() -> impl Strategy<Value = Value> {
    let built_in =
        edits(1..2).prop_filter_map("a built-in kind", |edits| match edits.into_iter().next() {
            Some(Edit::Apply(object)) => {
                let kind = object["kind"].as_str()?;
                matches!(kind, "Pod" | "Node" | "Namespace" | "NetworkPolicy").then_some(object)
            }
            _ => None,
        });
    let object = prop_oneof![3 => built_in, 1 => service(), 1 => slice()];
    (object, 1..1000_u32, any::<bool>(), any::<bool>()).prop_map(
        |(object, version, plain, finished)| match plain {
            true => object,
            false => decorated(object, version, finished),
        },
    )
}

fn kind_of(object: &Value) -> Kind {
    Kind::ALL.into_iter().find(|kind| object["kind"] == kind.name()).unwrap()
}

/// A list with the object, a change, its deletion.
fn history(object: &Value) -> Vec<Value> {
    let end = json!({"kind": object["kind"], "apiVersion": object["apiVersion"], "metadata": {
        "resourceVersion": "5", "annotations": {"k8s.io/initial-events-end": "true"}}});
    let mut changed = object.clone();
    changed["metadata"]["labels"]["changed"] = "yes".into();
    let event = |kind: &str, object: &Value| json!({"type": kind, "object": object});
    vec![
        event("ADDED", object),
        event("BOOKMARK", &end),
        event("MODIFIED", &changed),
        event("DELETED", &changed),
    ]
}

fn in_protobuf(events: &[Value], kind: Kind) -> Vec<u8> {
    let frame = |event: &Value| protobuf::event(event, kind.name()).unwrap();
    events.iter().flat_map(frame).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn an_object_says_the_same_in_both_encodings(object in object()) {
        let (kind, events) = (kind_of(&object), history(&object));
        let json: String = events.iter().map(|event| format!("{event}\n")).collect();
        let read = parse_watch(kind, json.as_bytes());
        prop_assert_eq!(read.len(), 3, "{:?}", read);
        prop_assert_eq!(parse_watch_protobuf(kind, &in_protobuf(&events, kind)), read);
    }

    #[test]
    fn damaged_bytes_end_the_answer_and_nothing_else(
        object in object(), at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>(),
    ) {
        let kind = kind_of(&object);
        let mut bytes = in_protobuf(&history(&object), kind);
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if cut {
            bytes.truncate(at);
        }
        for event in parse_watch_protobuf(kind, &bytes) {
            let is_own = match event {
                Event::Apply(object, _) => object.kind() == kind,
                Event::Delete(reference) => reference.kind == kind,
                _ => true,
            };
            prop_assert!(is_own);
        }
    }
}

/// Streaming lists as a kube-apiserver 1.36 answered them, in both encodings.
#[test]
fn objects_of_a_real_api_server_say_the_same_in_both_encodings() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/api_server");
    let mut pods = Vec::new();
    for kind in Kind::ALL.into_iter().filter(|kind| !kind.may_be_absent()) {
        let answer = |encoding: &str| {
            std::fs::read(folder.join(format!("{}.{encoding}", kind.plural()))).unwrap()
        };
        let read = parse_watch(kind, &answer("json"));
        let [Event::Resync(_, objects, faults)] = &read[..] else { panic!("{read:?}") };
        assert!(!objects.is_empty() && faults.is_empty(), "{kind:?}: {faults:?}");
        pods.extend(objects.iter().filter_map(|object| match object {
            Object::Pod(pod) => Some(pod.clone()),
            _ => None,
        }));
        assert_eq!(parse_watch_protobuf(kind, &answer("protobuf")), read);
    }
    let [file, web] = &pods[..] else { panic!("{pods:?}") };
    let static_pod = "0123456789abcdef0123456789abcdef";
    assert_eq!(file.uid.as_ref().map(ToString::to_string).as_deref(), Some(static_pod));
    assert_eq!((web.addresses.len(), web.ports.named.len(), web.ports.host.len()), (2, 3, 1));
}

/// Whatever a status says that no policy depends on.
#[test]
fn an_event_that_changes_nothing_that_is_read_is_passed_over_and_counted() {
    let pod = |status: Value, version: u32| {
        json!({"apiVersion": "v1", "kind": "Pod", "spec": {"nodeName": "n"}, "status": status,
            "metadata": {"name": "p", "namespace": "x", "resourceVersion": version.to_string()}})
    };
    let running = json!({"phase": "Running", "podIP": "10.0.0.1"});
    let mut ready = running.clone();
    ready["conditions"] = json!([{"type": "Ready", "status": "True"}]);
    let event = |kind: &str, object: Value| json!({"type": kind, "object": object});
    let mut end = pod(json!({}), 2);
    end["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
    let events = [
        event("ADDED", pod(running.clone(), 1)),
        event("BOOKMARK", end),
        event("MODIFIED", pod(ready.clone(), 3)),
        event("MODIFIED", pod(running.clone(), 4)),
        event("MODIFIED", pod(json!({"phase": "Running", "podIP": "10.0.0.2"}), 5)),
        event("BOOKMARK", pod(json!({}), 6)),
        event("DELETED", pod(ready.clone(), 7)),
        // A pod that is made again, as the last one was.
        event("ADDED", pod(json!({"phase": "Running", "podIP": "10.0.0.2"}), 8)),
    ];
    let json: String = events.iter().map(|event| format!("{event}\n")).collect();
    let ways = [
        parse_watch(Kind::Pod, json.as_bytes()),
        parse_watch_protobuf(Kind::Pod, &in_protobuf(&events, Kind::Pod)),
    ];
    for events in ways {
        let [
            Event::Resync(..),
            Event::Apply(Object::Pod(pod), _),
            Event::PassedOver(Kind::Pod, 2),
            Event::Delete(_),
            Event::Apply(..),
        ] = &events[..]
        else {
            panic!("{events:#?}")
        };
        assert_eq!(*pod.addresses, ["10.0.0.2".parse::<std::net::IpAddr>().unwrap()]);
    }
}

/// An API server, or what stands before it, that has no protobuf.
#[test]
fn an_api_server_that_refuses_protobuf_is_asked_for_json() {
    for refused in [Step::Status(406), Step::Stream(vec!["no message".to_owned()])] {
        let list = Step::Stream(vec![event("ADDED", node("a", 3)), event("END", node("", 5))]);
        let page = Step::Page(vec![node("a", 3)], "");
        let answers = match refused {
            Step::Status(_) => vec![refused, list],
            _ => vec![refused, page],
        };
        let double = Double::new(vec![("nodes", answers)]);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let connection = connect(&Access::Kubeconfig(double.kubeconfig())).await.unwrap();
            let (sender, mut receiver) = mpsc::channel(64);
            let tasks = watch(&connection.client, Pace::default(), &sender);
            loop {
                if let Event::Resync(Kind::Node, objects, _) = receiver.recv().await.unwrap() {
                    assert_eq!(objects.len(), 1);
                    break;
                }
            }
            drop(tasks);
        });
        let accepted = double.accepted("nodes");
        assert!(accepted[0].contains("protobuf"), "{accepted:?}");
        assert!(accepted[1..].iter().all(|it| it == "application/json"), "{accepted:?}");
    }
}
