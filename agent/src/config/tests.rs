//! Files, flags, defaults and faults.

use std::collections::BTreeMap;

use clap::{Args, Command};

use super::*;

fn resolve(options: Options) -> Result<Config, ConfigError> {
    Config::resolve(options, "Node-A", &BTreeSet::from([0, 1]))
}

fn fault(text: &str) -> String {
    match parse(text) {
        Err(error) => error,
        Ok(options) => resolve(options).expect_err(text).to_string(),
    }
}

#[test]
fn every_default_is_what_the_help_says() {
    let config = resolve(Options::default()).unwrap();
    let mut described = config.describe();
    for argument in Options::augment_args(Command::new("podgate")).get_arguments() {
        let name = argument.get_long().unwrap();
        let help = argument.get_help().unwrap().to_string();
        let at = described.iter().position(|(known, _)| *known == name).unwrap();
        let (_, value) = described.remove(at);
        match help.split_once("[default: ").and_then(|(_, rest)| rest.split_once(']')) {
            None => assert_eq!(value, "", "{name}"),
            Some(("the host name", _)) => assert_eq!(value, "node-a"),
            Some(("one for each core, else 1", _)) => assert_eq!(value, "1"),
            Some(("kernel with an uplink, else off", _)) => assert_eq!(value, "off"),
            Some(("the limit of its cgroup, or none", _)) => assert_eq!(value, "", "{name}"),
            Some((none, _)) if none.starts_with("none, ") => assert_eq!(value, "", "{name}"),
            Some((default, _)) => assert_eq!(value, default, "{name}"),
        }
    }
    assert_eq!(described, []);
}

#[test]
fn fewer_frames_are_enough_where_one_link_serves_all_pods() {
    let frames = |text: &str, cores: usize| {
        let config = Config::resolve(parse(text).unwrap(), "a", &(0..cores).collect()).unwrap();
        (config.umem_frames, config.umem_frames_without_offload)
    };
    assert_eq!(frames("", 2), (16_384, 65_536));
    assert_eq!(frames("workers: 2", 2), (24_576, 65_536));
    assert_eq!(frames("", 64), (32_768, 65_536));
    assert_eq!(frames("cores: 0-63", 64), (65_536, 65_536));
    assert_eq!(frames("flow-offload: off", 2), (65_536, 65_536));
    assert_eq!(frames("umem-frames: 8192", 2), (8192, 8192));
}

#[test]
fn a_file_may_say_everything() {
    let text = "
        node-name: node-b
        manifests: [/etc/a, b.yaml]
        socket: /tmp/s
        listen: 127.0.0.1:9000
        listen-names: [node-b.example.org]
        state-dir: /tmp/state
        takeover-wait: 2m
        aggregate: endpoints
        cores: 0,1
        workers: 2
        rx-mode: polling
        umem-frames: 8192
        hugepages: on
        frames-per-port: 512
        max-ports: 16
        sessions: 1000
        tcp-established-timeout: 1h
        tcp-transient-timeout: 30s
        tcp-closed-timeout: 3s
        udp-timeout: 20s
        dns-timeout: 2s
        icmp-timeout: 4s
        other-timeout: 10s
        unanswered-timeout: 5s
        host-network-policies: on
        socket-policies: closed
        socket-error: econnrefused
        socket-rules: 2048
        socket-endpoints: 4096
        socket-exchanges: 512
        cgroup-root: /host/cgroup
        bpf-fs: /host/bpf
        denied-reply: reject-all
        stage-all: on
        node-readiness: on
        session-accounting: on
        dns-min-ttl: 1m
        dns-max-hold: 2s
        web-page: on
        attach-timeout: 3s
        host-port: off
        node-addresses: [192.0.2.1, '2001:db8::1']
        mtu: 1400
        uplink: eth0
        underlay: vxlan
        vxlan-network: 7
        vxlan-port: 8472
        vxlan-group: on
        masquerade: direct
        translation-ports: 50000-50999
        link-local-destinations: 169.254.169.254,169.254.64.0/24
        external-ips: 203.0.113.0/24
        service-networks: [10.96.0.0/12, 'fd60::/112']
        encryption: wireguard
        encryption-host-network: on
        encryption-port: 51820
        metrics-listen: 0.0.0.0:9471
        metrics-cert-file: /etc/tls/tls.crt
        metrics-key-file: /etc/tls/tls.key
        flow-export: /var/log/flows.json
        flow-export-max-size-mb: 20
        flow-export-max-backups: 0
        flow-export-filter: verdict=dropped
        memory-limit: 1GiB
        journal: 256MB
        journal-dir: /var/journal
        verify-decisions: 100
        hubble-listen: 0.0.0.0:4244
        hubble-cert-file: /etc/hubble/tls.crt
        hubble-key-file: /etc/hubble/tls.key
        hubble-client-ca-file: /etc/hubble/ca.crt
        log-level: debug
        flow-offload: on
        flow-offload-grace: 5s
        log-format: json
    ";
    let described = resolve(parse(text).unwrap()).unwrap().describe();
    let said: BTreeMap<&str, String> = text
        .lines()
        .filter_map(|line| line.trim().split_once(": "))
        .map(|(name, value)| (name, value.replace(['[', ']', '\'', ' '], "")))
        .collect();
    for (name, value) in &described {
        match said.get(name.as_str()) {
            Some(said) => assert_eq!(value, said, "{name}"),
            // Those that go with another source or enforcer.
            None => {
                assert!(["kubeconfig", "enforcer", "pod-networks"].contains(&&**name), "{name}")
            }
        }
    }
    assert_eq!(described.len(), said.len() + 3);
    let flags = Options { mtu: Some(1300), ..Options::default() };
    assert_eq!(flags.over(parse(text).unwrap()).mtu, Some(1300));
}

#[test]
fn the_enforcer_decides_which_options_go_together() {
    let text = "enforcer: nftables\npod-networks: [10.1.0.0/24]\n";
    let config = resolve(parse(text).unwrap()).unwrap();
    assert_eq!(config.enforcer, Enforcer::Nftables);
    assert!(!config.host_port, "nothing is a port of the switch");
    assert_eq!(config.pod_networks, ["10.1.0.0/24".parse().unwrap()]);
    let fault = |text: &str| resolve(parse(text).unwrap()).unwrap_err().to_string();
    assert_eq!(fault("pod-networks: [10.1.0.0/24]"), "pod-networks: goes with enforcer nftables");
    assert_eq!(fault("enforcer: nftables\nuplink: eth0"), "uplink: goes with enforcer afxdp");
    let staged = fault("enforcer: nftables\nstage-all: on");
    assert!(staged.starts_with("stage-all: goes with enforcer afxdp"), "{staged}");
}

#[test]
fn a_file_without_content_says_nothing() {
    for text in ["", "# only a comment\n", "---\n"] {
        assert_eq!(parse(text), Ok(Options::default()), "{text:?}");
    }
}

#[test]
fn faults_name_their_place() {
    let unknown = fault("mtu: 1400\nspeed: 3\n");
    assert_eq!(unknown, "speed: unknown option (line 2, column 1)");
    assert_eq!(
        fault("worker: 2\n"),
        "worker: unknown option; did you mean workers? (line 1, column 1)"
    );
    // The flag may be written --node.
    assert_eq!(
        fault("node: n1\n"),
        "node: unknown option; did you mean node-name? (line 1, column 1)"
    );
    assert_eq!(fault("mtu: 1400\nmtu: 1500\n"), "mtu: is given twice (line 2, column 1)");
    let level = fault("log-level: loud");
    assert!(level.starts_with("log-level: \"loud\" is none of error, warn"), "{level}");
    let value = "node-name: one value belongs here (line 1, column 12)";
    assert_eq!(fault("node-name: {a: b}"), value);
    let word = "log-level: one word belongs here (line 1, column 12)";
    assert_eq!(fault("log-level: [info]"), word);
    let cases = [
        ("workers: [1]", "line 1"),
        ("mtu: big", "line 1"),
        ("mtu: 70000", "mtu: 70000 is not between"),
        ("cores: 0,7", "cores: there is no core 7"),
        ("cores: 0-1\nworkers: 1", "workers: 1 is not between 2 and"),
        ("frames-per-port: 4096", "frames-per-port: 4096 is not between"),
        ("umem-frames: 1024\nframes-per-port: 1024", "umem-frames: 1024 leave no room"),
        ("udp-timeout: 10ms", "udp-timeout: 10ms is less"),
        ("unanswered-timeout: 10ms", "unanswered-timeout: 10ms is less"),
        ("node-name: a/b", "node-name: 'a/b'"),
        ("node-addresses: [127.0.0.1]", "node-addresses: 127.0.0.1"),
        ("listen: here", "line 1"),
        ("rx-mode: sometimes", "line 1"),
        ("socket-policies: maybe", "none of off, on and closed"),
        ("uplink: eth0/1", "uplink: 'eth0/1'"),
        ("vxlan-network: 0", "vxlan-network: 0 is not between"),
        ("masquerade: direct", "masquerade: direct needs an uplink"),
        ("translation-ports: 9-3", "write FIRST-LAST"),
        ("encryption: maybe", "none of off and wireguard"),
        ("encryption: on", "none of off and wireguard"),
        ("encryption: wireguard", "encryption: wireguard needs an uplink"),
        (
            "uplink: a\nencryption: wireguard\nflow-offload: off",
            "wireguard goes with flow-offload on",
        ),
        ("enforcer: nftables\nencryption: wireguard", "wireguard goes with flow-offload on"),
        ("uplink: a\nencryption: wireguard\nencryption-port: 61001", "encryption-port: 61001 is"),
        ("uplink: a\nencryption: wireguard\nencryption-port: 65535", "no port follows it"),
        ("uplink: a\nencryption: wireguard\nencryption-port: 4788", "encryption-port: 4789 is"),
        ("encryption-host-network: on", "on goes with encryption"),
        ("encryption-port: 0", "encryption-port: 0 is not between"),
        ("service-networks: [10.0.0.1/99]", "line 1"),
        ("link-local-destinations: 169.254.1.0/16", "has host bits; write 169.254.0.0/16"),
        ("link-local-destinations: fe80::1", "fe80::1/128 is not in 169.254.0.0/16"),
        ("link-local-destinations: 10.0.0.0/8", "10.0.0.0/8 is not in 169.254.0.0/16"),
        ("flow-export-filter: colour=red", "flow-export-filter: 'colour=red'"),
        ("metrics-cert-file: /a", "metrics-cert-file: goes with metrics-key-file"),
        ("hubble-listen: unix:sock", "neither ADDRESS:PORT nor unix:PATH"),
        ("hubble-listen: localhost", "neither ADDRESS:PORT nor unix:PATH"),
        ("hubble-key-file: /a", "hubble-key-file: goes with hubble-cert-file"),
        (
            "hubble-listen: unix:///run/h.sock\nhubble-client-ca-file: /a",
            "hubble-client-ca-file: goes with an address",
        ),
        ("journal: 256\u{a0}MB", "is not a size; write a number and"),
        ("journal: 0", "is not a size"),
        ("flow-export: /", "flow-export: names no file"),
        ("flow-export-max-size-mb: 0", "flow-export-max-size-mb: 0 is not between"),
        ("host-port: perhaps", "neither on nor off"),
        // The option and the form are named, and not a parser's types.
        ("listen: here", "listen: 'here' is not ADDRESS:PORT"),
        ("workers: many", "workers: 'many' is not a number"),
        ("vxlan-port: 70000", "vxlan-port: '70000' is not a port"),
        ("node-addresses: [here]", "node-addresses: '[here]' is not an IP address"),
        ("pod-networks:\n- ten", "pod-networks: '' is not a network"),
        ("rx-mode: sometimes", "rx-mode: \"sometimes\" is none of"),
        ("socket-policies: maybe", "socket-policies: 'maybe' is none of"),
    ];
    for (text, expected) in cases {
        let fault = fault(text);
        assert!(fault.contains(expected), "{text}: {fault}");
    }
}

#[test]
fn manifests_in_the_environment_are_a_path_list() {
    assert_eq!(manifests_of(Some("/a::b".into())), [PathBuf::from("/a"), "b".into()]);
    assert_eq!(manifests_of(None), Vec::<PathBuf>::new());
}

#[test]
fn objects_come_from_one_source() {
    let options = |manifests: &[&str]| Options {
        kubeconfig: Some("/etc/kubeconfig".into()),
        manifests: manifests.iter().map(PathBuf::from).collect(),
        ..Options::default()
    };
    let online = [0].into();
    let config = Config::resolve(options(&[]), "n", &online).unwrap();
    assert_eq!(config.api_server, Some(Access::Kubeconfig("/etc/kubeconfig".into())));
    let error = Config::resolve(options(&["/etc/a"]), "n", &online).unwrap_err();
    assert!(error.to_string().starts_with("kubeconfig: /etc/kubeconfig is given"), "{error}");
}
