//! Input from outside, bent at random: it is refused, or understood; never a panic.

use local_api::Request;
use proptest::prelude::*;
use serde_json::Value;

const REQUESTS: [&str; 4] = [
    r#"{"method":"attach-pod","params":{"namespace":"a","name":"b","container_id":"c","interface":"eth0","netns":"/run/netns/c","host_interface":"pg0","mac":"02:00:00:00:00:01","addresses":["10.0.0.1","fd00::1"]}}"#,
    r#"{"method":"detach-pod","params":{"container_id":"c","interface":"eth0"}}"#,
    r#"{"method":"observe","params":{"verdict":"dropped","from_pod":"a/b","last":3,"follow":true}}"#,
    r#"{"method":"ready"}"#,
];

const CONFIG: &str = r#"{"cniVersion":"1.1.0","name":"pods","socket":"/nowhere/socket","mtu":1500,"timeout":1.5,"ipam":{"type":"host-local"},"dns":{"nameservers":["10.0.0.1"]},"prevResult":{"interfaces":[{"name":"eth0","mac":"02:00:00:00:00:01","sandbox":"/n"}],"ips":[{"address":"10.0.0.1/32"}]},"cni.dev/valid-attachments":[{"containerID":"c","ifname":"eth0"}]}"#;

const ARGS: &str = "IgnoreUnknown=1;K8S_POD_NAMESPACE=a;K8S_POD_NAME=b;K8S_POD_UID=1-2";

/// `text` with some of its bytes replaced, removed or repeated.
fn bent(text: &'static str) -> impl Strategy<Value = Vec<u8>> {
    let change = (any::<prop::sample::Index>(), 0..3, any::<u8>());
    prop::collection::vec(change, 0..6).prop_map(move |changes| {
        let mut bytes = text.as_bytes().to_vec();
        for (place, kind, byte) in changes {
            if bytes.is_empty() {
                break;
            }
            let place = place.index(bytes.len());
            match kind {
                0 => bytes[place] = byte,
                1 => drop(bytes.remove(place)),
                _ => bytes.insert(place, bytes[place]),
            }
        }
        bytes
    })
}

proptest! {
    #[test]
    fn a_request_understood_can_be_said_again(
        line in prop::sample::select(&REQUESTS[..]).prop_flat_map(bent)
    ) {
        let line = String::from_utf8_lossy(&line);
        match Request::parse(&line) {
            Ok(request) => {
                let again = serde_json::to_string(&request).unwrap();
                prop_assert_eq!(Request::parse(&again).unwrap(), request);
            }
            Err(error) => prop_assert!(!error.message.is_empty()),
        }
    }

    // None of these calls comes far: there is neither a namespace nor an IPAM plugin.
    #[test]
    fn the_plugin_answers_bent_input_with_an_error_object(
        command in prop::sample::select(&["ADD", "CHECK", "STATUS", "GC", "ADD\0"][..]),
        config in bent(CONFIG),
        args in bent(ARGS),
        container in bent("container-1"),
        interface in bent("eth0"),
    ) {
        let text = |bytes: &[u8]| Some(String::from_utf8_lossy(bytes).into_owned());
        let variable = |name: &str| match name {
            "CNI_COMMAND" => Some(command.to_owned()),
            "CNI_ARGS" => text(&args),
            "CNI_CONTAINERID" => text(&container),
            "CNI_IFNAME" => text(&interface),
            "CNI_NETNS" => Some("/nowhere/netns".to_owned()),
            "CNI_PATH" => Some("/nowhere".to_owned()),
            _ => None,
        };
        let outcome = cni::run(variable, || {}, config.as_slice());
        prop_assert_eq!(outcome.code, 1);
        let error: Value = serde_json::from_str(&outcome.output).unwrap();
        prop_assert!(error["code"].as_u64().is_some_and(|code| code > 0));
        prop_assert!(error["msg"].as_str().is_some_and(|message| !message.is_empty()));
    }
}
