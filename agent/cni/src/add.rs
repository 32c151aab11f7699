//! ADD: creates a pod's interface; answers once its policy is in force.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::config::Config;
use super::environment::{Environment, PodName};
use super::error::{CniError, Code};
use super::interface::{self, InterfaceNames, OpenedContainer};
use super::ipam::{Allocation, Ipam};
use super::reply;
use linux_net::{Namespace, Netlink};
use local_api::{AttachPod, Attachment, Client, ClientError};

/// Timeout of undoing an attachment that was not in force in time.
const FORGET: Duration = Duration::from_secs(2);

/// Attaches the pod. Undoes all steps if one fails.
pub(super) fn add(
    config: &Config,
    environment: &Environment,
    container: OpenedContainer,
) -> Result<Value, CniError> {
    let started = Instant::now();
    let attachment = environment.attachment()?;
    let (pod_name, netns) = environment.pod()?;
    let what = format!("attach pod {pod_name} (container {})", attachment.container_id);
    let attach = || {
        let ipam = Ipam::find(config, environment)?;
        let (namespace, pod_netlink) = interface::container(container, netns)?;
        let mut host = Netlink::open()?;
        let mut create = || interface::create(&mut host, &namespace, attachment, config.mtu);
        match config.expects_v6() {
            true => create()?,
            false => interface::without_v6(&namespace, create)?,
        }
        let mut steps = Steps { config, attachment, ipam, host, namespace, pod_netlink };
        let mut reached = Reached::default();
        steps.take(pod_name, started, &mut reached).map_err(|error| steps.undo(&reached, error))
    };
    let allocation = attach().map_err(|error| error.during(&what))?;
    let names = InterfaceNames::of(attachment);
    Ok(reply::result(config, &names, &attachment.interface, netns, &allocation))
}

/// Input of the steps after the pair is created.
struct Steps<'a> {
    config: &'a Config,
    attachment: &'a Attachment,
    ipam: Ipam<'a>,
    host: Netlink,
    namespace: Namespace,
    pod_netlink: Netlink,
}

/// The steps that were done.
#[derive(Default)]
struct Reached {
    allocated: bool,
    requested_attachment: bool,
}

impl Steps<'_> {
    fn take(
        &mut self,
        pod_name: &PodName,
        started: Instant,
        reached: &mut Reached,
    ) -> Result<Allocation, CniError> {
        let ends = interface::ends(&mut self.host, self.attachment)?;
        let allocation = self.prepare(ends, reached)?;
        interface::configure_pod_end(
            &self.namespace,
            &mut self.pod_netlink,
            &self.attachment.interface,
            ends[1],
            &allocation.addresses,
        )?;
        let names = InterfaceNames::of(self.attachment);
        let request = AttachPod {
            namespace: pod_name.namespace.clone(),
            name: pod_name.name.clone(),
            uid: pod_name.uid.clone(),
            container_id: self.attachment.container_id.clone(),
            interface: self.attachment.interface.clone(),
            netns: self.namespace.path().to_owned(),
            host_interface: names.host,
            mac: names.pod_mac,
            addresses: allocation.addresses.clone(),
        };
        let mut client = self.agent(self.time_left(started)?)?;
        reached.requested_attachment = true;
        if client.attach_pod(&request)?.flow_offload {
            interface::leave_offloads_on(&self.namespace, &self.attachment.interface)?;
        }
        Ok(allocation)
    }

    /// Prepares both ends while the IPAM plugin, which uses neither, chooses addresses.
    fn prepare(
        &mut self,
        [near, far]: [u32; 2],
        reached: &mut Reached,
    ) -> Result<Allocation, CniError> {
        let Self { config, attachment, ipam, host, namespace, pod_netlink } = self;
        let (prepared, allocation) = std::thread::scope(|scope| {
            let asked = scope.spawn(|| ipam.add());
            let prepared = interface::close_host_end(host, near, &config.network, attachment)
                .and_then(|()| {
                    let interface = &attachment.interface;
                    interface::prepare_pod_end(namespace, pod_netlink, interface, far, config.mtu)
                });
            match asked.join() {
                Ok(allocation) => (prepared, allocation),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        });
        reached.allocated = allocation.is_ok();
        prepared.and(allocation)
    }

    /// Undoes the steps in reverse order; returns what failed.
    fn undo(&mut self, reached: &Reached, error: CniError) -> CniError {
        let mut left = Vec::new();
        if reached.requested_attachment {
            // An agent that does not receive this notices that the interface is deleted below.
            let _ = self.agent(FORGET).and_then(|mut a| a.detach_pod(self.attachment));
        }
        let network = &self.config.network;
        if let Err(error) = interface::delete(&mut self.host, network, self.attachment) {
            left.push(error.message);
        }
        if reached.allocated {
            left.extend(self.ipam.del().err().map(|error| error.message));
        }
        if left.is_empty() {
            return error;
        }
        let message = format!("{}; undoing it failed: {}", error.message, left.join("; "));
        CniError { message, ..error }
    }

    fn agent(&self, timeout: Duration) -> Result<Client, ClientError> {
        Client::connect(&self.config.socket, timeout)
    }

    fn time_left(&self, started: Instant) -> Result<Duration, CniError> {
        let left = self.config.timeout.saturating_sub(started.elapsed());
        if left.is_zero() {
            let message = format!("it took longer than {:?} already", self.config.timeout);
            return Err(CniError::new(Code::TryLater, message));
        }
        Ok(left)
    }
}
