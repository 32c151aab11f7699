//! The `podgate-cni` binary, called by container runtimes.

use std::io::Write;
use std::process::ExitCode;

const HELP: &str = "\
podgate-cni: attaches pods to the Podgate switch (CNI specification 0.3.1 to 1.1.0)

A container runtime calls this program with CNI_COMMAND and other variables set
and a network configuration on standard input. The podgate agent has to be
running on this node.

Example of a configuration, /etc/cni/net.d/10-podgate.conflist:

  {
    \"cniVersion\": \"1.0.0\",
    \"name\": \"pods\",
    \"plugins\": [{
      \"type\": \"podgate-cni\",
      \"ipam\": { \"type\": \"host-local\", \"ranges\": [[{ \"subnet\": \"10.1.0.0/24\" }]] }
    }]
  }

Fields of podgate-cni (all may be left out but ipam):

  socket   the agent's local API [/run/podgate/podgate.sock]
  mtu      largest packet of a pod's interface, in bytes [1500]
  timeout  seconds that ADD waits until the pod's policy is in force [30]
  logFile  a file that gets one line for every call
  ipam     passed to the IPAM plugin of this type, found in CNI_PATH

Example of a call by hand:

  CNI_COMMAND=VERSION podgate-cni </dev/null

Exit codes: 0 done, 1 with a CNI error object on standard output.
";

fn main() -> ExitCode {
    if std::env::args().skip(1).any(|argument| argument == "--help" || argument == "-h") {
        return print(HELP, 0);
    }
    if let Some(argument) = std::env::args().nth(1) {
        eprintln!("podgate-cni takes no arguments, got '{argument}'; see podgate-cni --help");
        return ExitCode::from(2);
    }
    // The IPAM plugin inherits the same limit.
    let confine = || {
        if let Err(error) = confine::keep(confine::capabilities::PLUGIN) {
            eprintln!("podgate-cni: give up privileges: {error}");
        }
    };
    let variable = |name: &str| std::env::var(name).ok();
    let outcome = cni::run(variable, confine, std::io::stdin());
    print(&outcome.output, outcome.code)
}

fn print(text: &str, code: u8) -> ExitCode {
    let mut stdout = std::io::stdout();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => ExitCode::from(code),
        Err(error) => {
            eprintln!("podgate-cni: write standard output: {error}");
            ExitCode::from(1)
        }
    }
}
