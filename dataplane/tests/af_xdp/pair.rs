//! Two namespaces joined by a veth pair, and ports on its ends that a test drives by hand.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dataplane::port::af_xdp::{PortOptions, Umem, UmemConfig, Uplink};
use dataplane::port::{Buffers, Port, PortGone, Queues, RingFrames};
use dataplane::{Frame, FreeList, Memory};
use testkit::Namespace;

/// Long enough for whatever is going to happen at all.
pub(crate) const PATIENCE: Duration = testkit::PATIENCE;
pub(crate) const FRAMES: u32 = 1024;

/// A switch's namespace and a pod's, `pod0` in the one leading to `eth0` in the other.
pub(crate) struct Pair {
    pub(crate) switch: Namespace,
    pub(crate) pod: Namespace,
}

impl Pair {
    pub(crate) fn new(label: &str) -> Self {
        let switch = Namespace::new(&format!("{label}-s"));
        let pod = Namespace::new(&format!("{label}-p"));
        let name = pod.name();
        switch.exec(words(&format!("ip link add pod0 type veth peer name eth0 netns {name}")));
        for (namespace, interface) in [(&switch, "pod0"), (&pod, "eth0")] {
            // No messages of the kernel's own between those of the test.
            let off = format!("net.ipv6.conf.{interface}.disable_ipv6=1");
            namespace.exec(["sysctl", "-qw", &off]);
            namespace.exec(words(&format!("ip link set {interface} up")));
        }
        Self { switch, pod }
    }

    pub(crate) fn set_mtu(&self, mtu: u32) {
        for (namespace, interface) in [(&self.switch, "pod0"), (&self.pod, "eth0")] {
            namespace.exec(words(&format!("ip link set {interface} mtu {mtu}")));
        }
    }
}

/// One port with a memory of its own.
pub(crate) struct End {
    umem: Umem,
    pub(crate) memory: Arc<Memory>,
    pub(crate) free: FreeList,
    port: Option<Box<dyn Port>>,
}

impl End {
    /// A port on all queues of an interface, which is nobody else's.
    pub(crate) fn open(namespace: &Namespace, interface: &str) -> Self {
        namespace.enter(|| {
            let umem = umem();
            let port = open(&umem.0, interface);
            Self::new(umem, port)
        })
    }

    /// A port on all queues of an interface that stays the kernel's as well.
    pub(crate) fn open_uplink(namespace: &Namespace, interface: &str) -> (Self, Uplink) {
        namespace.enter(|| Self::open_uplink_here(interface))
    }

    /// The same, in the namespace where the caller is.
    pub(crate) fn open_uplink_here(interface: &str) -> (Self, Uplink) {
        let umem = umem();
        let (uplink, ports) = umem.0.open_uplink(interface, 64).expect("an uplink");
        let ports = ports.into_iter().map(|port| Box::new(port) as Box<dyn Port>);
        (Self::new(umem, Box::new(Queues::new(ports.collect()))), uplink)
    }

    /// Why an uplink cannot be opened.
    pub(crate) fn refused_uplink(interface: &str) -> String {
        umem().0.open_uplink(interface, 64).err().expect("refused").to_string()
    }

    fn new((umem, memory, frames): (Umem, Arc<Memory>, Vec<Frame>), port: Box<dyn Port>) -> Self {
        let free = FreeList::new(&memory, frames);
        let mut end = Self { umem, memory, free, port: Some(port) };
        // The first call lends the kernel its frames.
        assert!(end.receive().is_empty());
        end
    }

    /// Opens the port again.
    pub(crate) fn reopen(&mut self, namespace: &Namespace, interface: &str) {
        self.close();
        self.port = Some(namespace.enter(|| open(&self.umem, interface)));
        assert!(self.receive().is_empty());
    }

    /// Opens the uplink's port again; its program passes everything.
    pub(crate) fn reopen_uplink(&mut self, namespace: &Namespace, interface: &str) -> Uplink {
        self.close();
        let opened = namespace.enter(|| self.umem.open_uplink(interface, 64));
        let (uplink, ports) = opened.expect("an uplink");
        let ports = ports.into_iter().map(|port| Box::new(port) as Box<dyn Port>);
        self.port = Some(Box::new(Queues::new(ports.collect())));
        assert!(self.receive().is_empty());
        uplink
    }

    /// The frames that the kernel has, and those that are free.
    pub(crate) fn frames(&mut self) -> (RingFrames, usize) {
        (self.try_look().expect("it makes progress"), self.free.len())
    }

    /// The frames that the kernel has, or why the port has to be opened again.
    pub(crate) fn try_look(&mut self) -> Result<RingFrames, PortGone> {
        self.port.as_mut().expect("an open port").look()
    }

    pub(crate) fn close(&mut self) {
        if let Some(port) = self.port.take() {
            port.close(&mut Buffers { memory: &self.memory, free: &mut self.free });
        }
    }

    pub(crate) fn send(&mut self, frame: Frame) {
        assert!(self.try_send(vec![frame]).is_empty(), "the port took no frame");
    }

    /// Sends frames; returns those that the port did not take.
    pub(crate) fn try_send(&mut self, mut frames: Vec<Frame>) -> Vec<Frame> {
        let mut buffers = Buffers { memory: &self.memory, free: &mut self.free };
        let port = self.port.as_mut().expect("an open port");
        port.send(&mut buffers, &mut frames).expect("the interface is there");
        frames
    }

    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) {
        let mut buffers = Buffers { memory: &self.memory, free: &mut self.free };
        let frame = buffers.filled(bytes).expect("free frames");
        self.send(frame);
    }

    pub(crate) fn try_receive(&mut self) -> Result<Vec<Frame>, PortGone> {
        let mut frames = Vec::new();
        let mut buffers = Buffers { memory: &self.memory, free: &mut self.free };
        let port = self.port.as_mut().expect("an open port");
        port.receive(&mut buffers, 64, &mut frames).map(|()| frames)
    }

    pub(crate) fn receive(&mut self) -> Vec<Frame> {
        self.try_receive().expect("the interface is there")
    }

    /// The next frame that arrives.
    pub(crate) fn wait(&mut self) -> Frame {
        let deadline = Instant::now() + PATIENCE;
        let mut frames = Vec::new();
        while Instant::now() < deadline {
            let mut buffers = Buffers { memory: &self.memory, free: &mut self.free };
            let port = self.port.as_mut().expect("an open port");
            port.receive(&mut buffers, 1, &mut frames).expect("the interface is there");
            if let Some(frame) = frames.pop() {
                return frame;
            }
        }
        panic!("no frame within {PATIENCE:?}");
    }

    /// The same, however long it takes.
    pub(crate) fn wait_bytes_for_ever(&mut self) -> Vec<u8> {
        loop {
            let mut frames = Vec::new();
            let mut buffers = Buffers { memory: &self.memory, free: &mut self.free };
            let port = self.port.as_mut().expect("an open port");
            port.receive(&mut buffers, 1, &mut frames).expect("the interface is there");
            match frames.pop() {
                Some(frame) => {
                    let bytes = self.memory.bytes(&frame).to_vec();
                    self.free.put(frame);
                    return bytes;
                }
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    /// The bytes of the next frame that arrives.
    pub(crate) fn wait_bytes(&mut self) -> Vec<u8> {
        let frame = self.wait();
        let mut bytes = Vec::new();
        self.memory.append_to(&frame, &mut bytes, usize::MAX);
        self.free.put(frame);
        bytes
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.close();
    }
}

fn open(umem: &Umem, interface: &str) -> Box<dyn Port> {
    let ports = umem.open_queues(interface, &PortOptions::default()).expect("a port");
    let ports = ports.into_iter().map(|port| Box::new(port) as Box<dyn Port>);
    Box::new(Queues::new(ports.collect()))
}

fn umem() -> (Umem, Arc<Memory>, Vec<Frame>) {
    Umem::create(&UmemConfig { frames: FRAMES, hugepages: false }).expect("a UMEM")
}

pub(crate) fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}
