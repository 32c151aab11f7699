//! Removes Podgate from a node.
//!
//! ```text
//!   CNI configuration, reserved addresses, plugin ─▶ programs ─▶ interfaces with addresses and routes
//!                             ─▶ nftables tables ─▶ programs at cgroups ─▶ saved state
//! ```
//!
//! The configuration goes first, so that no pod is attached meanwhile. Pods that are attached lose
//! their interface: without a switch it carries nothing. Only what is Podgate's by its name is
//! touched.

use std::fmt::Display;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use dataplane::port::af_xdp::Umem;
use linux_net::{Direction, Netlink, OWN_LINKS, delete_table, own_tables};
use serde::Serialize;
use serde_json::Value;

use crate::install::PLUGIN;
use crate::sys;

/// Paths of what Podgate installs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// Folder of CNI configurations.
    pub configurations: PathBuf,
    /// Folder of CNI plugins.
    pub plugins: PathBuf,
    /// Folder where host-local keeps a folder of reserved addresses for each network.
    pub reservations: PathBuf,
    /// The switch's state folder.
    pub state: PathBuf,
    /// The journal's folder.
    pub journal: PathBuf,
    /// The file system of type bpf.
    pub bpf_fs: PathBuf,
}

/// Something that was removed, or would be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Removal {
    /// `configuration`, `addresses`, `plugin`, `xdp`, `tcx`, `filter`, `route`, `interface`,
    /// `nftables`, `sockets`, `state` or `journal`.
    pub kind: &'static str,
    /// Its name.
    pub name: String,
    /// Why it is still there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Removes everything in the calling thread's network namespace and in `places`; with `dry_run`
/// only says what that is.
///
/// # Errors
/// Fails if a switch runs with the state folder: nothing is removed then.
pub fn uninstall(places: &Places, dry_run: bool) -> Result<Vec<Removal>, String> {
    // Held until the end, so that no switch starts meanwhile.
    let _lock = lock(&places.state)?;
    let mut work = Work { dry_run, removed: Vec::new() };
    for (path, network) in configurations(&places.configurations) {
        work.remove_file("configuration", &path);
        let Some(reserved) = network.map(|name| places.reservations.join(name)) else { continue };
        if reserved.is_dir() {
            work.remove_folder("addresses", &reserved);
        }
    }
    let plugin = places.plugins.join(PLUGIN);
    if plugin.symlink_metadata().is_ok() {
        work.remove_file("plugin", &plugin);
    }
    match Netlink::open() {
        Ok(netlink) => work.network(netlink),
        Err(error) => work.note("interface", "all", Err(error)),
    }
    match own_tables() {
        Ok(tables) => {
            for table in tables {
                let done = if dry_run { Ok(()) } else { delete_table(&table) };
                work.note("nftables", &table, done);
            }
        }
        // Without nft the switch made none.
        Err(error) if error.is_not_found() => {}
        Err(error) => work.note("nftables", "all", Err(error)),
    }
    let pins = places.bpf_fs.join(socket_policy::PINS);
    if pins.exists() {
        let done = if dry_run { Ok(()) } else { socket_policy::remove_pins(&pins) };
        work.note("sockets", &pins.display().to_string(), done);
    }
    if places.state.exists() {
        work.remove_folder("state", &places.state);
    }
    if places.journal.exists() {
        work.remove_folder("journal", &places.journal);
    }
    Ok(work.removed)
}

/// Removes a folder with its content. One that is mounted into a container is emptied.
fn empty(folder: &Path) -> io::Result<()> {
    let error = match fs::remove_dir_all(folder) {
        Ok(()) => return Ok(()),
        Err(error) => error,
    };
    match fs::read_dir(folder).map(|mut left| left.next().is_none()) {
        Ok(true) if error.kind() == io::ErrorKind::ResourceBusy => Ok(()),
        _ => Err(error),
    }
}

struct Work {
    dry_run: bool,
    removed: Vec<Removal>,
}

impl Work {
    fn note(&mut self, kind: &'static str, name: &str, done: Result<(), impl Display>) {
        let error = done.err().map(|error| error.to_string());
        self.removed.push(Removal { kind, name: name.to_owned(), error });
    }

    fn note_removed(&mut self, kind: &'static str, name: &str) {
        self.removed.push(Removal { kind, name: name.to_owned(), error: None });
    }

    fn remove_file(&mut self, kind: &'static str, path: &Path) {
        let done = if self.dry_run { Ok(()) } else { fs::remove_file(path) };
        self.note(kind, &path.display().to_string(), done);
    }

    fn remove_folder(&mut self, kind: &'static str, folder: &Path) {
        let done = if self.dry_run { Ok(()) } else { empty(folder) };
        self.note(kind, &folder.display().to_string(), done);
    }

    fn network(&mut self, mut netlink: Netlink) {
        let links = match netlink.links() {
            Ok(links) => links,
            Err(error) => return self.note("interface", "all", Err(error)),
        };
        let is_own = |link: &linux_net::Link| {
            // A WireGuard device of a program ends with that.
            let has_own_name = OWN_LINKS.contains(&link.name.as_str());
            match link.kind.as_str() {
                "veth" => has_own_name || link.alias.starts_with("podgate:"),
                "wireguard" => has_own_name,
                _ => false,
            }
        };
        for link in links.iter().filter(|link| !is_own(link)) {
            self.programs(&mut netlink, &link.name, link.index);
        }
        let routes = netlink.routes().unwrap_or_default();
        for link in links.iter().filter(|link| is_own(link)) {
            for route in routes.iter().filter(|it| it.link == link.index && !it.is_kernels()) {
                let name = format!("{} dev {}", route.destination, link.name);
                self.note_removed("route", &name);
            }
            let deleted = match self.dry_run {
                true => Ok(()),
                false => netlink.delete_link(link.index),
            };
            match deleted {
                // The other end went with it.
                Err(error) if error.is_not_found() => self.note_removed("interface", &link.name),
                done => self.note("interface", &link.name, done),
            }
        }
    }

    fn programs(&mut self, netlink: &mut Netlink, interface: &str, index: u32) {
        let detached = match self.dry_run {
            true => Umem::own_program(interface),
            false => Umem::detach_own(interface),
        };
        match detached {
            Ok(None) => {}
            Ok(Some(name)) => self.note_removed("xdp", &format!("{name} on {interface}")),
            Err(error) => self.note("xdp", interface, Err(error)),
        }
        match sys::detach_tcx(index, self.dry_run) {
            Ok(names) => {
                for name in names {
                    self.note_removed("tcx", &format!("{name} on {interface}"));
                }
            }
            Err(error) => self.note("tcx", interface, Err(error)),
        }
        // At the egress of an uplink there is that of encryption.
        for direction in [Direction::Ingress, Direction::Egress] {
            let filters = netlink.filters(index, direction).unwrap_or_default();
            let own: Vec<_> = filters.iter().filter(|filter| filter.is_own()).collect();
            let removed = match self.dry_run || own.is_empty() {
                true => Ok(()),
                false => netlink.remove_programs(index, direction),
            };
            for filter in own {
                self.note(
                    "filter",
                    &format!("{} on {interface}", filter.name),
                    removed.as_ref().copied(),
                );
            }
        }
    }
}

/// Configurations that call the plugin, with the network's name if host-local reserves its addresses.
fn configurations(folder: &Path) -> Vec<(PathBuf, Option<String>)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found: Vec<_> =
        entries.filter_map(|path| network(&path).map(|network| (path, network))).collect();
    found.sort_unstable();
    found
}

/// `None` unless the file is a configuration that calls the plugin.
fn network(path: &Path) -> Option<Option<String>> {
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    if !["conf", "conflist", "json"].contains(&ending) || !path.is_file() {
        return None;
    }
    let value: Value = serde_json::from_str(&fs::read_to_string(path).ok()?).ok()?;
    let kind = |value: &Value| value.get("type").and_then(Value::as_str).map(str::to_owned);
    let mut plugins = match value.get("plugins").and_then(Value::as_array) {
        Some(plugins) => plugins.iter(),
        None => std::slice::from_ref(&value).iter(),
    };
    let own = plugins.find(|plugin| kind(plugin).as_deref() == Some(PLUGIN))?;
    let is_local = own.get("ipam").and_then(kind).as_deref() == Some("host-local");
    let name = value.get("name").and_then(Value::as_str);
    // One part of a path.
    let name = name.filter(|name| is_local && !name.starts_with('.') && !name.contains('/'));
    Some(name.filter(|name| !name.is_empty()).map(str::to_owned))
}

fn lock(state: &Path) -> Result<Option<File>, String> {
    let Ok(file) = OpenOptions::new().write(true).open(state.join("lock")) else { return Ok(None) };
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => {
            Err(format!("a switch runs with {}; stop it first", state.display()))
        }
        Err(TryLockError::Error(error)) => Err(format!("{}: {error}", state.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::{Namespace, TempDir};

    fn places(folder: &TempDir) -> Places {
        let place = |name: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(&path).unwrap();
            path
        };
        Places {
            configurations: place("net.d"),
            plugins: place("bin"),
            reservations: place("networks"),
            state: place("state"),
            journal: place("journal"),
            bpf_fs: place("bpf"),
        }
    }

    #[test]
    fn only_what_is_podgates_goes() {
        testkit::requires_root!();
        testkit::requires!(testkit::has_program("nft"), "needs nft");
        let namespace = Namespace::new("uninstall");
        let folder = TempDir::new("uninstall");
        let places = places(&folder);
        let ours = r#"{"cniVersion":"1.0.0","name":"p","plugins":[
            {"type":"podgate-cni","ipam":{"type":"host-local"}}]}"#;
        fs::write(places.configurations.join("10-podgate.conflist"), ours).unwrap();
        for name in ["..", "other"] {
            // Neither names a folder of addresses that could be removed.
            let text = ours.replace("\"p\"", &format!("{name:?}"));
            let text = if name == "other" { text.replace("host-local", "static") } else { text };
            fs::write(places.configurations.join(format!("{}.conf", name.len())), text).unwrap();
        }
        for name in ["p", "other"] {
            fs::create_dir(places.reservations.join(name)).unwrap();
            fs::write(places.reservations.join(name).join("10.1.4.2"), "c1\neth0").unwrap();
        }
        fs::write(places.configurations.join("20-other.conf"), r#"{"type":"bridge"}"#).unwrap();
        for name in ["podgate-cni", "host-local"] {
            fs::write(places.plugins.join(name), "").unwrap();
        }
        fs::write(places.state.join("sessions"), "").unwrap();
        for line in [
            "ip link add podgate0 type veth peer name podgate-host",
            "ip link set podgate-host up",
            "ip link set podgate0 up",
            "ip route add 10.1.4.0/24 dev podgate-host",
            "ip link add pg0123456789abc type veth peer name eth0",
            "ip link set pg0123456789abc alias podgate:pods:c1:eth0",
            "ip link add podgate-uplink type veth peer name podgate-wire",
            "ip link add other type veth peer name another",
            "nft add table inet podgate",
            "nft add table inet podgate-filter",
            "nft add table bridge podgate-policy",
            "nft add table inet podgates-neighbour",
        ] {
            namespace.exec(line.split(' '));
        }
        let would = namespace.enter(|| uninstall(&places, true).unwrap());
        assert!(places.state.exists(), "a dry run changes nothing");
        let removed = namespace.enter(|| uninstall(&places, false).unwrap());
        assert_eq!(would, removed);
        assert!(removed.iter().all(|one| one.error.is_none()), "{removed:?}");
        let names = |kind: &str| {
            let of_kind = removed.iter().filter(|one| one.kind == kind);
            of_kind.map(|one| one.name.as_str()).collect::<Vec<_>>()
        };
        assert_eq!(names("route").len(), 1, "{removed:?}");
        assert_eq!(
            names("nftables"),
            ["inet podgate", "inet podgate-filter", "bridge podgate-policy"]
        );
        assert_eq!(names("interface").len(), 5);
        let left = namespace.exec(["ip", "-brief", "link"]);
        assert!(left.contains("another") && left.lines().count() == 3, "{left}");
        assert!(namespace.exec(["nft", "list", "tables"]).contains("podgates-neighbour"));
        assert!(places.configurations.join("20-other.conf").exists());
        assert_eq!(names("configuration").len(), 3, "{removed:?}");
        assert_eq!(names("addresses"), [places.reservations.join("p").to_str().unwrap()]);
        assert!(!places.reservations.join("p").exists());
        assert!(places.reservations.join("other/10.1.4.2").exists());
        assert!(places.plugins.join("host-local").exists());
        assert!(!places.state.exists());
        assert_eq!(namespace.enter(|| uninstall(&places, false).unwrap()), []);
    }

    #[test]
    fn nothing_is_removed_while_a_switch_runs() {
        let folder = TempDir::new("uninstall-lock");
        let places = places(&folder);
        let file = File::create(places.state.join("lock")).unwrap();
        file.lock().unwrap();
        fs::write(places.plugins.join(PLUGIN), "").unwrap();
        let error = uninstall(&places, false).unwrap_err();
        assert!(error.contains("stop it first"), "{error}");
        assert!(places.plugins.join(PLUGIN).exists());
    }
}
