//! Arguments and configurations of `podgate konnectivity-server` and `konnectivity-agent` that are refused.

use std::process::Command;

use testkit::TempDir;

/// Exit code and message of a role whose arguments are unusable.
fn refused(args: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_podgate")).args(args).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn unusable_arguments_are_told_by_their_flags() {
    let server = "konnectivity-server";
    let certificate = ["--cluster-cert=/nowhere/a", "--cluster-key=/nowhere/b"];
    let agent = "konnectivity-agent";
    let cases: [(&[&str], &str); 23] = [
        (&[server, "--mode=udp"], "--mode: 'udp'"),
        (&[server, "--uds-name=/tmp/x"], "--cluster-cert: needed"),
        (
            &[server, certificate[0], certificate[1], "--cluster-ca-cert=/d"],
            "--server-ca-cert: needed",
        ),
        (
            &[server, certificate[0], certificate[1], "--uds-name=/tmp/x", "--server-port=0"],
            "--allow-unauthenticated-agents accepts that",
        ),
        (
            &[
                server,
                certificate[0],
                certificate[1],
                "--uds-name=/tmp/x",
                "--server-port=0",
                "--allow-unauthenticated-agents",
            ],
            "/nowhere/a: ",
        ),
        (&[server, "--enable-profiling"], "--enable-profiling: pprof is Go's"),
        (&[server, "--enable_contention_profiling"], "needs --enable-profiling"),
        (&[server, "--xfr-channel-size=-1"], "-1 is not greater than 0"),
        (&[server, "--graceful-shutdown-timeout=-1s"], "'-1s'"),
        (&[agent, "--logtostderr=false"], "--logtostderr=false: needs --log-file"),
        (&[agent, "--log_dir=/tmp"], "--log-dir: not supported"),
        (&[agent, "--kubeconfig=/nowhere/k"], "--kubeconfig: /nowhere/k: "),
        (&[agent, "--health-server-port=0"], "--health-server-port: 0 is not a port"),
        (
            &[server, certificate[0], certificate[1], "--cluster-ca-cert=/d", "--uds-name=/tmp/x"],
            "--server-port: has to be 0",
        ),
        (
            &[
                server,
                certificate[0],
                certificate[1],
                "--cluster-ca-cert=/d",
                "--uds-name=/x",
                "--server-port=0",
                "--server-cert=/a",
            ],
            "--server-cert: not with --uds-name",
        ),
        (
            &[server, certificate[0], certificate[1], "--agent-namespace=kube-system"],
            "--agent-service-account: needed",
        ),
        (
            &[server, certificate[0], certificate[1], "--authentication-audience=c"],
            "--agent-namespace: needed",
        ),
        (
            &[
                server,
                certificate[0],
                certificate[1],
                "--agent-namespace=a",
                "--agent-service-account=b",
            ],
            "--authentication-audience: needed",
        ),
        (
            &[
                server,
                certificate[0],
                certificate[1],
                "--agent-namespace=a",
                "--agent-service-account=b",
                "--authentication-audience=c",
                "--cluster-ca-cert=/d",
            ],
            "--cluster-ca-cert: not when agents show tokens",
        ),
        (&[server, "--proxy-strategies=destCIDR"], "'destCIDR' is not a strategy"),
        (&["konnectivity-agent", "--agent-identifiers=rack=7"], "unknown address type 'rack'"),
        (&["konnectivity-agent", "--agent-cert=/a"], "--agent-cert and --agent-key"),
        (&["konnectivity-agent", "--ca-cert=/nowhere/ca.crt"], "/nowhere/ca.crt: "),
    ];
    for (args, wanted) in cases {
        let (code, error) = refused(args);
        assert!(code == Some(2) && error.contains(wanted), "{args:?}: {code:?} {error}");
    }
}

#[test]
fn a_configuration_is_checked() {
    let folder = TempDir::new("egress");
    let path = folder.path().join("egress.yaml");
    let check = |text: &str, args: &[&str]| {
        std::fs::write(&path, text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_podgate"));
        let output =
            command.args(["konnectivity-server", "check"]).arg(&path).args(args).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let good = "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\n\
                egressSelections:\n- name: cluster\n  connection:\n    proxyProtocol: GRPC\n    \
                transport: {uds: {udsName: /run/konnectivity.sock}}\n";
    let (code, text, _) = check(good, &[]);
    assert_eq!(code, Some(0));
    assert!(
        text.contains("cluster       gRPC over the unix socket /run/konnectivity.sock"),
        "{text}"
    );
    let (_, json, _) = check(good, &["-o", "json"]);
    let first: serde_json::Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
    assert_eq!((&first["context"], &first["proxyProtocol"]), (&"cluster".into(), &"GRPC".into()));
    let (code, _, error) = check(&good.replace("GRPC", "SOCKS"), &[]);
    assert_eq!(code, Some(2));
    let field = "egress.yaml: egressSelections[0].connection.proxyProtocol: 'SOCKS'";
    assert!(error.contains(field), "{error}");
}
