//! Fields that Go's encoder writes and JSON leaves out, and bytes that are not a message.

use super::pod::{PodEvent, pod_event};
use super::*;
use crate::Object;
use crate::objects::{Read, read};
use serde_json::json;

/// A field of bytes.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let varint = |value: usize| match value {
        short @ 0..128 => vec![short as u8],
        long => vec![long as u8 | 0x80, (long >> 7) as u8],
    };
    let (tag, length) = (varint(usize::from(number) << 3 | 2), varint(content.len()));
    [&tag, &length, content].concat()
}

/// A field that is a number.
fn varint(number: u8, value: u8) -> Vec<u8> {
    vec![number << 3, value]
}

fn event(kind: &str, object: &[u8]) -> Vec<u8> {
    let of = [field(1, b"v1"), field(2, kind.as_bytes())].concat();
    let unknown =
        [MAGIC, &field(1, &of), &field(2, object), &field(3, b""), &field(4, b"")].concat();
    [field(1, b"ADDED"), field(2, &field(1, &unknown))].concat()
}

#[test]
fn empty_fields_that_json_leaves_out_mean_nothing() {
    let metadata = [field(1, b"a"), field(2, b""), field(3, b"n"), field(5, b""), field(8, b"")];
    let port = [field(1, b""), varint(2, 0), varint(3, 80), field(4, b""), field(5, b"")].concat();
    let container = [field(1, b"c"), field(6, &port)].concat();
    let spec = [field(2, &container), field(3, b""), field(10, b""), varint(11, 0)].concat();
    let status = [field(1, b""), field(6, b"")].concat();
    let pod = [field(1, &metadata.concat()), field(2, &spec), field(3, &status)].concat();
    let bytes = event("Pod", &pod);
    // The outer message may stand in an envelope of its own.
    let wrapped = [MAGIC, &field(2, &bytes)].concat();
    for bytes in [bytes, wrapped] {
        let parsed = watch_event(&bytes, Kind::Pod).unwrap();
        assert_eq!(parsed["type"], "ADDED");
        let plain = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "a", "namespace": "n"},
            "spec": {"containers": [{"name": "c", "ports": [{"containerPort": 80}]}]}});
        assert_eq!(read(parsed["object"].clone()), read(plain));
    }
}

#[test]
fn pods_without_faults_are_read_at_once_and_as_all_objects_are() {
    let event_of = |ip: &[u8]| {
        let label = field(11, &[field(1, b"app"), field(2, b"db")].concat());
        let hash = [field(1, b"kubernetes.io/config.hash"), field(2, b"h")].concat();
        let mirror = [field(1, b"kubernetes.io/config.mirror"), field(2, b"h")].concat();
        let other = field(12, &[field(1, b"other"), field(2, b"x")].concat());
        let metadata = [field(1, b"a"), field(5, b"u"), field(6, b"7"), label, other];
        let annotations = [field(12, &hash), field(12, &mirror)].concat();
        let times = [field(8, &varint(1, 60)), field(9, &varint(1, 90))].concat();
        let metadata = [metadata.concat(), times, annotations].concat();
        let port = field(6, &[field(1, b"dns"), varint(3, 53), field(4, b"UDP")].concat());
        let side = [port.clone(), field(24, b"Always")].concat();
        let spec = [field(2, &port), field(10, b"n"), varint(11, 0), field(20, &side)].concat();
        let status = [field(1, b"Running"), field(6, ip), field(12, &field(1, ip))].concat();
        let pod = [field(1, &metadata), field(2, &spec), field(3, &status)].concat();
        event("Pod", &pod)
    };
    let bytes = event_of(b"10.0.0.1");
    let PodEvent { exists, version, pod } = pod_event(&bytes).unwrap();
    assert_eq!((exists, version.as_str()), (true, "7"));
    assert_eq!((pod.addresses.len(), pod.ports.named.len()), (1, 2));
    assert_eq!((&pod.uid, pod.is_static, pod.is_terminating), (&Some("h".into()), true, true));
    let parsed = watch_event(&bytes, Kind::Pod).unwrap();
    assert_eq!(read(parsed["object"].clone()), Read::Object(Object::Pod(pod.into()), Vec::new()));
    // Its faults are named by the other way.
    assert!(pod_event(&event_of(b"x")).is_none());
    assert!(pod_event(&bytes[..bytes.len() - 1]).is_none());
    assert!(pod_event(&event("Node", b"")).is_none());
}

#[test]
fn a_policy_with_a_field_that_is_not_known_has_a_fault() {
    let metadata = [field(1, b"p"), field(3, b"n")].concat();
    let rule = field(9, b"of a later version");
    let spec = [field(1, b""), field(2, &rule)].concat();
    let policy = [field(1, &metadata), field(2, &spec)].concat();
    let of = [field(1, b"networking.k8s.io/v1"), field(2, b"NetworkPolicy")].concat();
    let unknown = [MAGIC, &field(1, &of), &field(2, &policy)].concat();
    let bytes = [field(1, b"ADDED"), field(2, &field(1, &unknown))].concat();
    let parsed = watch_event(&bytes, Kind::NetworkPolicy).unwrap();
    let Read::Object(_, faults) = read(parsed["object"].clone()) else { panic!("{parsed}") };
    assert_eq!(faults[0].field, "spec.ingress[0].field 9");
}

#[test]
fn damage_is_named_with_its_place() {
    for (pod, problem) in [
        (&[0x0a, 0x09, b'x'][..], "a field is longer than what it stands in at byte 30"),
        (&[0x0a, 0x80], "a number has no end at byte 29"),
        (&[0x0b], "unknown wire type at byte 28"),
        (&[0x00, 0x00], "a field's number is out of range at byte 28"),
        (&[0x08, 0x01], "a field of another type at byte 28"),
        (&[0x0a, 0x03, 0x0a, 0x01, 0xff], "a text is not UTF-8 at byte 32"),
    ] {
        let damage = watch_event(&event("Pod", pod), Kind::Pod).unwrap_err();
        assert_eq!(damage.to_string(), problem);
    }
    let other = watch_event(&event("Secret", b""), Kind::Pod).unwrap_err();
    assert_eq!(other.problem, "an object of another kind");
    assert!(list(b"{}", Kind::Pod).is_err() && status(b"nonsense").is_err());
}

/// A number in the wire format, of any size.
fn number(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// The same as [`field`], of any length.
fn long(number: u8, content: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2][..], &self::number(content.len() as u64), content].concat()
}

#[test]
fn numbers_and_lengths_of_any_size_open_nothing() {
    let policy = |port: u64| {
        let port = [&[2 << 3][..], &number(port)].concat();
        let ports = field(1, &field(2, &[varint(1, 0), port].concat()));
        let spec = [field(1, b""), field(2, &ports)].concat();
        let metadata = [field(1, b"p"), field(3, b"n")].concat();
        let policy = [field(1, &metadata), field(2, &spec)].concat();
        let of = [field(1, b"networking.k8s.io/v1"), field(2, b"NetworkPolicy")].concat();
        let unknown = [MAGIC, &field(1, &of), &long(2, &policy)].concat();
        [field(1, b"ADDED"), long(2, &long(1, &unknown))].concat()
    };
    for (port, is_one) in
        [(80, true), (0, false), (65_536, false), (u64::MAX, false), (1 << 31, false)]
    {
        let parsed = watch_event(&policy(port), Kind::NetworkPolicy).unwrap();
        let Read::Object(_, faults) = read(parsed["object"].clone()) else { panic!("{parsed}") };
        assert_eq!(faults.is_empty(), is_one, "{port}: {parsed}");
    }
    for (head, problem) in [
        ([&[0x0a][..], &number(u64::MAX)].concat(), "a field is longer than what it stands in"),
        ([&[0x0a][..], &number(1 << 40)].concat(), "a field is longer than what it stands in"),
        ([&[0x0a][..], &[0xff; 11]].concat(), "a number has no end"),
        (number(u64::MAX), "a field's number is out of range"),
    ] {
        let damage = watch_event(&event("Pod", &head), Kind::Pod).unwrap_err();
        assert_eq!(damage.problem, problem);
    }
    // Many fields, and texts that are longer than any object.
    let label = |n: u32| field(11, &[field(1, n.to_string().as_bytes()), field(2, b"v")].concat());
    let labels: Vec<u8> = (0..100_000).flat_map(label).collect();
    let name = long(1, &vec![b'x'; 16 << 20]);
    let pod = long(1, &[name, labels].concat());
    let unknown =
        [MAGIC, &field(1, &[field(1, b"v1"), field(2, b"Pod")].concat()), &long(2, &pod)].concat();
    let bytes = [field(1, b"ADDED"), long(2, &long(1, &unknown))].concat();
    let parsed = watch_event(&bytes, Kind::Pod).unwrap();
    assert_eq!(parsed["object"]["metadata"]["labels"].as_object().unwrap().len(), 100_000);
    assert!(
        !matches!(read(parsed["object"].clone()), Read::Object(_, faults) if faults.is_empty())
    );
    // Cut anywhere, it is damage or an object without what is missing.
    let whole = policy(80);
    for length in 0..whole.len() {
        if let Ok(parsed) = watch_event(&whole[..length], Kind::NetworkPolicy) {
            assert!(parsed.get("object").is_none(), "{length}: {parsed}");
        }
    }
}
